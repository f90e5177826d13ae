"""Research data sets and generated data as pairs.

Importing a module of this package registers its pairs. The pair "files" is a user's table.
"""

from daband.domains.readers import _user_files as _user_files
