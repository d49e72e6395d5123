"""Tools of MCP servers (Model Context Protocol, https://modelcontextprotocol.io), for chats."""
