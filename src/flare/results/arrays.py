"""Goes once nobody imports it: use `flare.results.result_files`."""

from .result_files import load_csv as load_csv
from .result_files import load_npy as load_npy
from .result_files import load_npz as load_npz
from .result_files import save_npy as save_npy
