//! The definition, the manifest and the reference.

mod definition;
mod manifest;
mod reference;
mod support;
