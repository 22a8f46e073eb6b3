//! Answers of JSON that have values. With escapes a text has up to six times the bytes of its values: so it counts before it is
//! made, and there is no copy in between.

use std::io::{self, Write};

use bytes::Bytes;
use percolator_client::Entry;
use serde::Serialize;
use serde_json::Value;

use crate::failure::{Failure, Reason};
use crate::named_bytes::NamedBytes;
use crate::transactions::{Entries, Values};
use crate::transit::Counted;

/// The value of the only cell that was read.
pub(crate) fn value(read: &mut Values) -> Result<Bytes, Failure> {
    let value = read.values.first().map(value_object);
    lines_of(value.iter(), read.counted.as_mut())
}

#[derive(Serialize)]
struct WithValues<'a> {
    #[serde(flatten)]
    answer: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<NamedBytes<'a, 1>>>,
}

/// An object, and in it the values of cells, if any were asked for.
pub(crate) fn with_values(answer: Value, read: Option<Values>) -> Result<Bytes, Failure> {
    let (values, mut counted) = match read {
        Some(Values { values, counted }) => (Some(values), counted),
        None => (None, None),
    };
    let values = values.as_ref();
    let values = values.map(|values| values.iter().map(value_object).collect());
    let answer = WithValues { answer, values };
    lines_of(std::iter::once(&answer), counted.as_mut())
}

/// Cells of a scan, a line each.
pub(crate) fn cells(mut entries: Entries) -> Result<Bytes, Failure> {
    let cells = entries.cells.iter().map(cell_object);
    lines_of(cells, Some(&mut entries.counted))
}

fn value_object(value: &Option<Bytes>) -> NamedBytes<'_, 1> {
    NamedBytes([("value", value.as_deref())])
}

fn cell_object(entry: &Entry) -> NamedBytes<'_, 3> {
    NamedBytes([
        ("column", Some(&entry.column)),
        ("row", Some(&entry.row)),
        ("value", Some(&entry.value)),
    ])
}

/// The objects, a line each. `counted`: their values, if there are any; the text counts beside them as long as they do.
fn lines_of<T: Serialize>(
    objects: impl Iterator<Item = T> + Clone,
    counted: Option<&mut Counted>,
) -> Result<Bytes, Failure> {
    let failed = |error: io::Error| Failure::new(Reason::Internal, error.to_string());
    let mut size = Size(0);
    write(objects.clone(), &mut size).map_err(failed)?;
    if let Some(counted) = counted {
        counted.take(size.0)?;
    }
    let mut text = Vec::with_capacity(size.0);
    write(objects, &mut text).map_err(failed)?;
    Ok(text.into())
}

fn write<T: Serialize>(
    objects: impl Iterator<Item = T>,
    to: &mut impl Write,
) -> Result<(), io::Error> {
    for object in objects {
        serde_json::to_writer(&mut *to, &object)?;
        to.write_all(b"\n")?;
    }
    Ok(())
}

/// How many bytes are written.
struct Size(usize);

impl Write for Size {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use percolator_telemetry::IntCounter;

    use super::*;
    use crate::transit::Transit;

    #[test]
    fn a_text_counts_before_it_is_made() {
        let refused = IntCounter::new("refused", "Refused.").unwrap();
        let transit = Transit::new(1500, refused);
        let values = [Some(vec![0; 100].into()), Some(vec![0xff; 3].into()), None];
        let text = |counted: Option<&mut Counted>| {
            let objects = values.iter().map(value_object);
            lines_of(objects, counted)
        };
        let expected = format!(
            "{{\"value\":\"{}\"}}\n{{\"value_base64\":\"////\"}}\n{{\"value\":null}}\n",
            "\\u0000".repeat(100)
        );
        assert_eq!(text(None).unwrap(), expected);
        let mut counted = transit.counted(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(text(Some(&mut counted)).unwrap(), expected);
        assert_eq!(transit.bytes(), expected.len());
        // Another one would have more than is left.
        let failure = text(Some(&mut counted)).unwrap_err();
        assert_eq!(failure.reason, Reason::Bytes);
        assert_eq!(transit.bytes(), expected.len());
    }
}
