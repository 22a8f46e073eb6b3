//! The master: the directory of tables, tablets and servers.
