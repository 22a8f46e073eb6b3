//! Reading the log at open. The last segment ends where no record is any more; behind that lies what the
//! file held before it was written over.

use std::{collections::VecDeque, path::Path};

use bytes::Bytes;

use super::{
    file_name,
    record::{self, Found, Place},
};
use crate::{Batch, Error, disk::Disk};

/// What was found.
pub(crate) struct Replayed {
    /// The segments and their lengths, the oldest first.
    pub(crate) segments: VecDeque<(u64, u64)>,
    /// Number of records.
    pub(crate) records: u64,
}

/// Numbers of the segments among file names, in order.
pub(super) fn segments(names: &[String]) -> Vec<u64> {
    let mut segments: Vec<u64> = names
        .iter()
        .filter_map(|name| name.strip_suffix(".log")?.parse().ok())
        .collect();
    segments.sort_unstable();
    segments
}

/// Gives every group of the log to `apply`, in order. A torn record at the end of the last segment is
/// cut off, durably; anything else that is not a record is [`Error::Corrupt`].
pub(crate) fn replay(
    disk: &dyn Disk,
    path: &Path,
    mut apply: impl FnMut(&[Batch]) -> Result<(), Error>,
) -> Result<Replayed, Error> {
    let names = disk.list().map_err(Error::io("list", path))?;
    let mut replayed = Replayed {
        segments: VecDeque::new(),
        records: 0,
    };
    let segments = segments(&names);
    for (at, &segment) in segments.iter().enumerate() {
        if at > 0 && segments[at - 1] + 1 != segment {
            return Err(Error::Corrupt {
                path: path.join(file_name(segments[at - 1] + 1)),
                offset: 0,
                detail: "this segment of the log is missing".to_owned(),
            });
        }
        let name = file_name(segment);
        let file = path.join(&name);
        let is_last = at + 1 == segments.len();
        let content = Bytes::from(disk.read(&name).map_err(Error::io("read", &file))?);
        let mut rest = content.clone();
        while !rest.is_empty() {
            let offset = (content.len() - rest.len()) as u64;
            let place = Place { segment, offset };
            let corrupt = |detail: String| Error::Corrupt {
                path: file.clone(),
                offset,
                detail,
            };
            match check(&rest, place) {
                Ok((payload, bytes)) => {
                    let group = record::decode(payload).map_err(corrupt)?;
                    apply(std::slice::from_ref(&group))?;
                    replayed.records += 1;
                    rest = rest.slice(bytes..);
                }
                Err(Bad::Torn) if is_last => {
                    disk.truncate(&name, offset)
                        .map_err(Error::io("cut the torn record off", &file))?;
                    rest.clear();
                    replayed.segments.push_back((segment, offset));
                }
                Err(Bad::Torn) => {
                    return Err(corrupt(
                        "the record is not whole, but the log goes on in the next segment"
                            .to_owned(),
                    ));
                }
                Err(Bad::Damaged(detail)) => return Err(corrupt(detail)),
            }
        }
        let whole = replayed
            .segments
            .back()
            .is_none_or(|(last, _)| *last != segment);
        if whole && is_last {
            // A process that was killed before its sync leaves a record that is only in memory: nobody may
            // see it before it is on the device.
            disk.truncate(&name, content.len() as u64)
                .map_err(Error::io("sync", &file))?;
        }
        if whole {
            replayed.segments.push_back((segment, content.len() as u64));
        }
    }
    Ok(replayed)
}

enum Bad {
    Torn,
    Damaged(String),
}

/// The record at the beginning of `rest`, or what is wrong with it.
fn check(rest: &Bytes, place: Place) -> Result<(Bytes, usize), Bad> {
    let damaged = |what: &str| {
        Err(Bad::Damaged(format!(
            "{what}, and the log goes on behind it"
        )))
    };
    match record::look(rest, place) {
        Found::Record { payload, bytes } => Ok((payload, bytes)),
        Found::Short => Err(Bad::Torn),
        Found::BadPayload { bytes } if has_record_behind(rest, bytes, place) => {
            damaged("the record's checksum is wrong")
        }
        Found::BadHeader if has_record_behind(rest, 1, place) => {
            damaged("the checksum of the record's header is wrong")
        }
        Found::BadPayload { .. } | Found::BadHeader => Err(Bad::Torn),
    }
}

/// Whether a record of this segment lies `from` bytes behind the place or later. Without a sound header
/// there is no telling where the next one begins: any place is tried. What an older segment has left in the
/// file is of another place, and none.
fn has_record_behind(rest: &Bytes, from: usize, place: Place) -> bool {
    (from..rest.len())
        .filter(|skip| rest[*skip..].starts_with(&record::MAGIC))
        .any(|skip| {
            let place = Place {
                offset: place.offset + skip as u64,
                ..place
            };
            // A sound header is enough: whether its payload is damaged too does not matter.
            !matches!(record::look(&rest.slice(skip..), place), Found::BadHeader)
        })
}
