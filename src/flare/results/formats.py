"""Goes once nobody imports it: use `flare.results.result_files`."""

from .result_files import SUFFIXES as SUFFIXES
from .result_files import check_suffix as check_suffix
from .result_files import coordinate_names as coordinate_names
from .result_files import load_table as load_table
