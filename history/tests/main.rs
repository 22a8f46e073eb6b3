//! Histories, and what a checker finds in them.

mod anomalies;
mod convert;
mod format;
mod large;
mod lost_answers;
mod order;
mod support;
