"""What our HTTP servers share: who may ask, and how they are served. Needs the extra ``serve``."""
