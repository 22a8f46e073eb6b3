//! Cuts a line into words.
//!
//! Words are parted by blanks. In single quotes everything stands for itself. Elsewhere, within double
//! quotes too, a backslash begins an escape: `\"`, `\'`, `\#` and a backslash before a blank stand for
//! the character, the others (`\\`, `\n`, `\r`, `\t`, `\xNN`) are what
//! [`percolator_client::unescape`] reads. They are left in the words, so that an error in one can name
//! the word that it's in. A `#` where a word would begin starts a comment.

/// The words of a line, with their escapes.
///
/// # Errors
/// What is wrong, and where.
pub(crate) fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '#' if word.is_none() => break,
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some((_, '\'')) => break,
                        Some((_, '\\')) => word.push_str("\\\\"),
                        Some((_, c)) => word.push(c),
                        None => return Err(unclosed(line, at)),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some((_, '"')) => break,
                        Some((_, '\\')) => escape(word, chars.next()),
                        Some((_, c)) => word.push(c),
                        None => return Err(unclosed(line, at)),
                    }
                }
            }
            '\\' => escape(word.get_or_insert_default(), chars.next()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

fn escape(word: &mut String, next: Option<(usize, char)>) {
    match next {
        Some((_, c @ ('"' | '\'' | '#' | ' '))) => word.push(c),
        Some((_, c)) => {
            word.push('\\');
            word.push(c);
        }
        None => word.push('\\'),
    }
}

fn unclosed(line: &str, at: usize) -> String {
    let column = line[..at].chars().count() + 1;
    format!("the quote at column {column} is not closed")
}

#[cfg(test)]
mod tests {
    use percolator_client::unescape;

    use super::*;

    fn bytes(line: &str) -> Vec<Vec<u8>> {
        let words = split(line).unwrap();
        words.iter().map(|word| unescape(word).unwrap()).collect()
    }

    #[test]
    fn words_are_parted_by_blanks() {
        assert_eq!(split("  put t\tbob  x ").unwrap(), ["put", "t", "bob", "x"]);
        assert_eq!(split("").unwrap(), [""; 0]);
        assert_eq!(split("get t # a comment").unwrap(), ["get", "t"]);
        assert_eq!(split("get t a#b").unwrap(), ["get", "t", "a#b"]);
    }

    #[test]
    fn quotes_and_escapes_keep_words_together() {
        assert_eq!(
            bytes(r#"'a b' "c d" e\ f g"h "i'"'"#),
            [
                b"a b".to_vec(),
                b"c d".to_vec(),
                b"e f".to_vec(),
                b"gh i\"".to_vec(),
            ]
        );
        assert_eq!(bytes(r#"'' """#), [b"".to_vec(), b"".to_vec()]);
        assert_eq!(
            bytes(r#""a\"b" 'a\n' "a\n" \x00\xff \\"#),
            [
                b"a\"b".to_vec(),
                b"a\\n".to_vec(),
                b"a\n".to_vec(),
                b"\x00\xff".to_vec(),
                b"\\".to_vec(),
            ]
        );
        assert_eq!(
            bytes(r#"'{"a": [1, "b\"]}'"#),
            [br#"{"a": [1, "b\"]}"#.to_vec()]
        );
        // A backslash before a closing quote is one, not an escape of the quote.
        assert_eq!(bytes(r#""a\\" b"#), [b"a\\".to_vec(), b"b".to_vec()]);
    }

    #[test]
    fn an_open_quote_is_found() {
        assert_eq!(
            split("get 'a").unwrap_err(),
            "the quote at column 5 is not closed"
        );
        assert!(split("\"a\\\"").unwrap_err().contains("column 1"));
    }

    #[test]
    fn wrong_escapes_are_left_to_whoever_reads_the_word() {
        assert!(unescape(&split("a\\q").unwrap()[0]).is_err());
        assert!(unescape(&split("a\\").unwrap()[0]).is_err());
    }
}
