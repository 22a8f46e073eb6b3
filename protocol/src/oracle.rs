//! The oracle's rule: make a limit durable, then grant below it.
