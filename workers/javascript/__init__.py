"""TypeScript and JavaScript in a worker: host processes, and the tools and extensions that run in them."""
