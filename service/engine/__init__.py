"""The write path: operations are gathered, carried out in one transaction and committed; the fold brings state back.

Joins `policy` and `storage`, runs the background jobs, and knows neither routes nor pages.
"""
