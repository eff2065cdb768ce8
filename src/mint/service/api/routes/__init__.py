"""The HTTP routes, one file per noun.

They check who asks and pass the request on; the work is done elsewhere.
"""
