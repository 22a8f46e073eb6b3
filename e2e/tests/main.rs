//! The chart, the operator and its clusters on a real Kubernetes, which `cargo xtask test e2e` starts.

mod admission;
mod backup;
mod changes;
mod chart;
mod dual_stack;
mod ipv6;
mod kubernetes;
mod masters;
mod monitoring;
mod observers;
mod older;
mod oracles;
mod policies;
mod prompt_and_late;
mod register;
mod rights;
mod scaling;
mod upgrades;
mod versions;
