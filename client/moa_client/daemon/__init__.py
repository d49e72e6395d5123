"""The daemon: one process that holds link, drafter and conversations for all chats, the endpoint and the page."""
