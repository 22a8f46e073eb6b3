//! A row has one owner at any time (architecture, rule 7): no two servers that run say that they own
//! overlapping tablets.

use std::collections::BTreeMap;

use percolator_wire::v1;

use super::Invariant;

#[derive(Default)]
pub(super) struct OneOwner {
    owned: BTreeMap<String, Vec<v1::TabletInfo>>,
}

impl Invariant for OneOwner {
    fn name(&self) -> &'static str {
        "one owner"
    }

    fn owns(&mut self, server: &str, tablets: &[v1::TabletInfo]) -> Result<(), String> {
        self.owned.insert(server.to_owned(), tablets.to_vec());
        for (other, theirs) in self.owned.iter().filter(|(other, _)| *other != server) {
            for tablet in tablets {
                if let Some(their) = theirs.iter().find(|their| overlap(tablet, their)) {
                    return Err(format!(
                        "{server} owns tablet {} and {other} tablet {} of table {}",
                        tablet.id, their.id, tablet.table_name
                    ));
                }
            }
        }
        Ok(())
    }
}

fn overlap(a: &v1::TabletInfo, b: &v1::TabletInfo) -> bool {
    let begins_before_end =
        |a: &v1::TabletInfo, b: &v1::TabletInfo| b.end_row.is_empty() || a.start_row < b.end_row;
    a.table_id == b.table_id && begins_before_end(a, b) && begins_before_end(b, a)
}
