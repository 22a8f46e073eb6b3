//! The master's commands as tablet servers take them.

use percolator_gc_master::Action;
use percolator_tablet::core::TabletCommand;
use percolator_tablet::{ServerIncarnation, ServerLocation};

/// What a tablet server is asked to do.
pub(super) fn command_of(action: &Action) -> TabletCommand {
    match action {
        Action::Create {
            tablet,
            made,
            barrier,
        } => TabletCommand::Create {
            tablet: tablet.clone(),
            made: *made,
            barrier: *barrier,
        },
        Action::Drop { tablet, table } => TabletCommand::Drop {
            id: *tablet,
            table: *table,
        },
        Action::Split {
            tablet,
            epoch,
            row,
            sibling,
        } => TabletCommand::Split {
            id: *tablet,
            epoch: *epoch,
            row: row.clone(),
            sibling: *sibling,
        },
        Action::Import {
            tablet,
            from,
            address,
        } => TabletCommand::Import {
            tablet: tablet.clone(),
            from: ServerLocation {
                server: ServerIncarnation {
                    server: from.server.clone(),
                    incarnation: from.incarnation,
                },
                address: from.address.clone(),
            },
            address: address.clone(),
        },
        Action::Merge { first, second } => TabletCommand::Merge {
            first: *first,
            second: *second,
        },
    }
}
