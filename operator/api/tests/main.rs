//! The definition, the manifest and the reference.

mod definition;
mod manifest;
mod proxies;
mod reference;
mod support;
