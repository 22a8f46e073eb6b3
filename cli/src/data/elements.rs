//! The elements of a JSON array, one in memory at a time: where they begin and end. What is in them is read elsewhere.

use std::io::{self, BufRead};

use super::lines::{Lines, Next};

/// What came next in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// An element, whole, which begins in this line.
    Whole {
        line: u64,
    },
    /// One over the limit of a line; it was passed over.
    TooLong {
        line: u64,
    },
    /// The file ends before the array does, or goes on behind it.
    Broken(&'static str),
    End,
}

impl<R: BufRead> Lines<R> {
    /// Whether the first thing in the input is the beginning of an array, which is passed over then.
    pub(crate) fn enters_array(&mut self) -> io::Result<bool> {
        let mut first = self.peek()?;
        // A byte order mark.
        if first == Some(0xef) {
            for _ in 0..3 {
                self.take_byte()?;
            }
            first = self.peek()?;
        }
        while let Some(byte) = first.filter(u8::is_ascii_whitespace) {
            self.take_byte()?;
            debug_assert!(byte.is_ascii_whitespace());
            first = self.peek()?;
        }
        if first == Some(b'[') {
            self.take_byte()?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Puts the next element of the array into `buffer`, in place of what was there.
    pub(crate) fn element(&mut self, buffer: &mut Vec<u8>) -> io::Result<Element> {
        buffer.clear();
        let mut line = self.line() + 1;
        let (mut depth, mut in_text, mut escaped, mut too_long) = (0_usize, false, false, false);
        loop {
            let Some(byte) = self.take_byte()? else {
                return Ok(Element::Broken(
                    "the file ends within the array that it begins with",
                ));
            };
            if buffer.is_empty() && !too_long {
                if byte.is_ascii_whitespace() {
                    continue;
                }
                line = self.line() + 1;
            }
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_text => escaped = true,
                b'"' => in_text = !in_text,
                _ if in_text => {}
                b'[' | b'{' => depth += 1,
                b',' if depth == 0 => break,
                b']' if depth == 0 => {
                    self.in_array = false;
                    break;
                }
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            too_long |= buffer.len() >= self.limit();
            if too_long {
                buffer.clear();
            } else {
                buffer.push(byte);
            }
        }
        Ok(if too_long {
            Element::TooLong { line }
        } else {
            Element::Whole { line }
        })
    }

    /// What is behind the array.
    pub(crate) fn behind_array(&mut self, buffer: &mut Vec<u8>) -> io::Result<Element> {
        loop {
            match self.next(buffer)? {
                Next::End => return Ok(Element::End),
                Next::Line if buffer.trim_ascii().is_empty() => {}
                Next::Line | Next::TooLong => {
                    return Ok(Element::Broken("there is something behind the array"));
                }
            }
        }
    }
}
