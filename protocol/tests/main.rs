//! The rules, by scripts, by models and by interleavings.

mod codec;
mod gc;
mod interleavings;
mod lease;
mod one_cell;
mod oracle;
mod scripts;
mod sim;
mod support;
