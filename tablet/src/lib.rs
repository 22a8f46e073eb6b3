//! The tablet server: latch rows, load, decide with protocol, write one batch, reply.
