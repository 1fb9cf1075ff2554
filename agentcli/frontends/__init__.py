"""The ways to use a session. A front end submits operations and shows events; it holds no agent logic."""
