//! The client against a transport that the test's script has in its hand: each message can be lost before or behind the
//! server, come late, come twice, be refused, or get no answer for ever. The servers are the shipped cores, so that what
//! a client reports can be compared with what the servers hold. Each request is checked against the rules of the protocol.

mod cluster;
mod commit;
mod faults;
mod interference;
mod large;
mod metrics;
mod monitor;
mod network;
mod observe;
mod outcome;
mod own;
mod reads;
mod resolver;
mod scan;
mod session;
mod tables;
mod transact;
mod world;
