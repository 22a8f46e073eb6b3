//! A batch: puts and deletes over any columns that take effect together or not at all.

use crate::{Column, Key, Value};

/// One put (`value` is there) or delete (it is not).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) column: Column,
    pub(crate) key: Key,
    pub(crate) value: Option<Value>,
}

/// Puts and deletes that are applied together, in the order in which they were added: of two on one
/// key the later wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    ops: Vec<Op>,
    size_bytes: usize,
    spends_reserve: bool,
}

impl Batch {
    /// Sets `key` to `value`. A value may be empty, a key may not.
    pub fn put(&mut self, column: Column, key: impl Into<Key>, value: impl Into<Value>) {
        self.push(Op {
            column,
            key: key.into(),
            value: Some(value.into()),
        });
    }

    /// As [`Self::put`], in the place of what the batch says of the key already: it doesn't grow by that.
    pub fn put_again(&mut self, column: Column, key: impl Into<Key>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        let same = |op: &&mut Op| op.column == column && op.key == key;
        match self.ops.iter_mut().rfind(same) {
            Some(op) => {
                self.size_bytes += value.len();
                self.size_bytes -= op.value.replace(value).map_or(0, |old| old.len());
            }
            None => self.put(column, key, value),
        }
    }

    /// Removes `key`; nothing happens if it is not there.
    pub fn delete(&mut self, column: Column, key: impl Into<Key>) {
        self.push(Op {
            column,
            key: key.into(),
            value: None,
        });
    }

    /// Marks a batch that a nearly full disk should still take, because it ends something that was begun:
    /// see [`crate::Options::last_reserve_bytes`].
    pub fn spend_reserve(&mut self) {
        self.spends_reserve = true;
    }

    /// Whether it was marked by [`Self::spend_reserve`].
    pub fn spends_reserve(&self) -> bool {
        self.spends_reserve
    }

    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Number of puts and deletes.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Bytes of all keys and values.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The puts (with a value) and deletes (without), in order.
    pub fn ops(&self) -> impl Iterator<Item = (Column, &Key, Option<&Value>)> {
        self.ops
            .iter()
            .map(|op| (op.column, &op.key, op.value.as_ref()))
    }

    /// Adds all of `other` behind what is here, and leaves `other` empty.
    pub fn append(&mut self, other: &mut Batch) {
        self.ops.append(&mut other.ops);
        self.size_bytes += std::mem::take(&mut other.size_bytes);
    }

    pub(crate) fn push(&mut self, op: Op) {
        self.size_bytes += op.key.len() + op.value.as_ref().map_or(0, Value::len);
        self.ops.push(op);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_again_takes_the_place_of_what_was_said_last() {
        let mut batch = Batch::default();
        batch.put(Column::Meta, b"a".to_vec(), b"old".to_vec());
        batch.delete(Column::Lock, b"a".to_vec());
        for value in [b"longer".as_slice(), b"new"] {
            batch.put_again(Column::Meta, b"a".to_vec(), value.to_vec());
        }
        batch.put_again(Column::Lock, b"a".to_vec(), b"lock".to_vec());
        batch.put_again(Column::Meta, b"b".to_vec(), b"other".to_vec());
        let mut plain = Batch::default();
        plain.put(Column::Meta, b"a".to_vec(), b"new".to_vec());
        plain.put(Column::Lock, b"a".to_vec(), b"lock".to_vec());
        plain.put(Column::Meta, b"b".to_vec(), b"other".to_vec());
        assert_eq!(batch, plain);
    }
}
