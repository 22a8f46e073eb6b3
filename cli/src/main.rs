//! The percolator command.
fn main() {}
