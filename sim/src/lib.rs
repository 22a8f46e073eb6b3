//! A whole cluster in one thread, from one seed.
//!
//! The shipped oracle, tablet servers and master, as far as they know neither socket nor clock nor
//! thread, and the shipped client library run here over a simulated network, clocks and disks, that fail
//! in every way that is in [`plan::Fault`]. The same seed does the same, to the byte.
//!
//! **Why an executor of our own**, and neither turmoil nor madsim: the servers' cores do no I/O, and the
//! client takes time, dice and background work from its `Transport`, so there is nothing to intercept: no
//! sockets, and of tokio its `Notify` alone, which needs no runtime. What is left is a queue of tasks and a queue of timers, in `world`. turmoil would
//! simulate TCP below tonic and hyper, at many times the cost for each message, and can neither pause a
//! process nor let its clocks drift; madsim replaces tokio, tonic and libc's clocks in the whole build,
//! so that what is tested isn't what is shipped. What isn't run here, the code between the cores and
//! the sockets, is what the crash tests with real processes are for.
//!
//! - [`world`]: time, tasks, processes; [`network`], [`clock`], [`disk`]: what fails.
//! - [`servers`]: the shipped cores as processes; `transport`: the client library's way to them.
//! - [`arguments`]: how the program is called.
//! - [`seeds`]: which are run, and until when; [`plan`]: what a seed means; [`nemesis`]: who makes things fail; [`run`]: one run.
//! - [`replicas`]: several oracles and masters; [`oracle_link`], [`master_link`]: how others find the one that leads.
//! - [`scale`]: what the master's operations cost in a large cluster.
//! - [`workloads`]: what clients do; [`invariants`]: what must hold.

mod administration;
pub mod arguments;
pub mod clock;
pub mod cluster;
mod cuts;
mod dead_server;
pub mod disk;
mod elections;
mod elsewhere;
pub mod end;
pub mod export;
mod followed;
pub mod history;
pub mod invariants;
pub mod killed_by;
mod library;
mod lies;
pub mod lone_invariants;
mod lost_folder;
pub mod master_link;
mod members;
pub mod messages;
mod moves;
pub mod mutation;
mod narrow;
pub mod nemesis;
pub mod network;
mod older;
pub mod oracle_link;
mod orphan;
pub mod owned;
pub mod plan;
pub mod proof;
pub mod recorder;
mod replaced;
pub mod replicas;
pub mod rng;
pub mod run;
pub mod scale;
pub mod seeds;
pub mod seen;
pub mod servers;
mod shown;
pub mod shrink;
pub mod stale;
pub mod store;
pub mod subject;
mod swapped;
pub mod trace;
pub mod transport;
mod verified;
pub mod watch;
pub mod words;
pub mod workloads;
pub mod world;
