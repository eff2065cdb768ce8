"""Messages as tokens by chat templates, and tool calls in the text of replies.

Calling the tools is in ``agents``.
"""
