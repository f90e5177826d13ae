"""How Sphinx builds the site: ``make docs``.

Everything is local: no page asks for anything from the network.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))
# what rich prints in tutorials must not depend on a terminal
os.environ.setdefault("COLUMNS", "100")

import daband  # noqa: E402

project = "daband"
author = "The daband maintainers"
copyright = "the daband maintainers, Apache-2.0"  # noqa: A001
release = version = daband.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "markdown_pages",
    "mathml",
    "reference_pages",
    "shared_text",
]
exclude_patterns = ["build", "_ext", "**/README.md", "**/GALLERY_HEADER.rst"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
nitpicky = True

# Text

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline", "fieldlist"]
myst_heading_anchors = 4
suppress_warnings = ["config.cache"]
smartquotes = False

# Reference

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = True
python_maximum_signature_line_length = 80
add_module_names = False
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
# Types of other projects (their inventories would have to be fetched), and names that are not part
# of the surface.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!daband).*"),
    (r"py:.*", r"daband\.(_\w+|\w+(\.\w+)+)\.\w+"),
]

# Tutorials: executed at every build, a failure fails it


def _clean(_conf: dict[str, object], _where: str) -> None:
    """Every tutorial starts alike, whatever ran before it: drawing, warnings, threads."""
    import matplotlib as mpl

    mpl.rcdefaults()
    mpl.use("agg")
    mpl.rcParams.update(
        {
            "figure.dpi": 110,
            "figure.figsize": (7.0, 3.2),
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "font.size": 10,
            "axes.prop_cycle": mpl.cycler(
                color=["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"]
            ),
        }
    )
    warnings.simplefilter("default")
    warnings.simplefilter("error", RuntimeWarning)  # an empty mean draws an empty figure


sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["tutorials"],
    "filename_pattern": r"\.py$",
    "copyfile_regex": r"^$",
    "ignore_pattern": r"_to_decision\.py$",  # forty lines each, run in the tests
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 0,
    "remove_config_comments": True,
    "plot_gallery": os.environ.get("DABAND_DOCS_TUTORIALS", "1") == "1",
    "only_warn_on_example_error": False,
    "abort_on_example_error": False,
    "image_scrapers": ("matplotlib",),
    "reset_modules": (_clean,),
    "within_subsection_order": "gallery_order.TutorialOrder",
    "thumbnail_size": (320, 200),
    "capture_repr": ("_repr_html_", "__repr__"),
    "nested_sections": False,
    "backreferences_dir": None,
    "write_computation_times": False,
    "parallel": int(os.environ.get("DABAND_DOCS_JOBS", "1")),
}

# Pages

html_theme = "pydata_sphinx_theme"
html_title = "daband"
html_static_path = ["_static"]
html_css_files = ["daband.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
html_sidebars = {"index": []}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
