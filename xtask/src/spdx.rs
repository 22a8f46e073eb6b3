//! SPDX licence expressions: which licences we would use something under.

/// `A`, `A WITH E`, `x AND y`, `x OR y`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    Licence {
        name: String,
        exception: Option<String>,
    },
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
}

impl Expression {
    /// Parses an expression. `/` is how Cargo once wrote OR. AND binds closer than OR.
    ///
    /// # Errors
    ///
    /// What is wrong with it, for people.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let spaced = text
            .replace('/', " OR ")
            .replace('(', " ( ")
            .replace(')', " ) ");
        let mut words = spaced.split_whitespace().peekable();
        let expression = or(&mut words)?;
        match words.next() {
            None => Ok(expression),
            Some(word) => Err(format!("{word:?} is one too many in {text:?}")),
        }
    }

    /// The licences to use it under, of those that are `allowed`; where there's a choice, the ones that
    /// come first there. None if it can't be used.
    pub(crate) fn choose(&self, allowed: &[&'static str]) -> Option<Vec<&'static str>> {
        match self {
            // An exception only permits more.
            Self::Licence { name, .. } => allowed
                .iter()
                .find(|allowed| *allowed == name)
                .map(|name| vec![*name]),
            Self::And(a, b) => {
                let mut both = a.choose(allowed)?;
                both.extend(b.choose(allowed)?);
                both.sort_unstable();
                both.dedup();
                Some(both)
            }
            Self::Or(a, b) => {
                let rank = |licences: &Vec<&str>| {
                    let rank = |name| allowed.iter().position(|allowed| *allowed == name);
                    licences.iter().copied().filter_map(rank).max()
                };
                [a, b]
                    .into_iter()
                    .filter_map(|side| side.choose(allowed))
                    .min_by_key(rank)
            }
        }
    }
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn or(words: &mut Words<'_>) -> Result<Expression, String> {
    let mut left = and(words)?;
    while words.next_if_eq(&"OR").is_some() {
        left = Expression::Or(Box::new(left), Box::new(and(words)?));
    }
    Ok(left)
}

fn and(words: &mut Words<'_>) -> Result<Expression, String> {
    let mut left = one(words)?;
    while words.next_if_eq(&"AND").is_some() {
        left = Expression::And(Box::new(left), Box::new(one(words)?));
    }
    Ok(left)
}

fn one(words: &mut Words<'_>) -> Result<Expression, String> {
    if words.next_if_eq(&"(").is_some() {
        let inner = or(words)?;
        return match words.next() {
            Some(")") => Ok(inner),
            _ => Err("a ) is missing".to_owned()),
        };
    }
    let name = name(words)?;
    let exception = match words.next_if_eq(&"WITH") {
        Some(_) => Some(self::name(words)?),
        None => None,
    };
    Ok(Expression::Licence { name, exception })
}

fn name(words: &mut Words<'_>) -> Result<String, String> {
    match words.next() {
        Some(word) if !["(", ")", "AND", "OR", "WITH"].contains(&word) => Ok(word.to_owned()),
        Some(word) => Err(format!("{word:?} where a name should be")),
        None => Err("it ends where a name should be".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: [&str; 4] = ["Apache-2.0", "MIT", "BSD-3-Clause", "Unicode-3.0"];

    fn choose(text: &str) -> Option<String> {
        let expression = Expression::parse(text).expect("an expression");
        expression
            .choose(&ALLOWED)
            .map(|licences| licences.join(" AND "))
    }

    #[test]
    fn one_licence() {
        assert_eq!(choose("MIT").as_deref(), Some("MIT"));
        assert_eq!(choose("GPL-3.0-only"), None);
        assert_eq!(choose("mit"), None);
    }

    #[test]
    fn a_choice_takes_what_comes_first_in_the_list() {
        assert_eq!(choose("MIT OR Apache-2.0").as_deref(), Some("Apache-2.0"));
        assert_eq!(choose("GPL-3.0-only OR MIT").as_deref(), Some("MIT"));
        assert_eq!(choose("Zlib OR GPL-3.0-only"), None);
    }

    #[test]
    fn the_old_slash_is_a_choice() {
        assert_eq!(choose("MIT/Apache-2.0").as_deref(), Some("Apache-2.0"));
        assert_eq!(choose("Unlicense/MIT").as_deref(), Some("MIT"));
    }

    #[test]
    fn both_are_needed() {
        assert_eq!(
            choose("(MIT OR Apache-2.0) AND Unicode-3.0").as_deref(),
            Some("Apache-2.0 AND Unicode-3.0")
        );
        assert_eq!(choose("MIT AND GPL-2.0-only"), None);
    }

    #[test]
    fn and_binds_closer_than_or() {
        assert_eq!(
            choose("MIT OR BSD-3-Clause AND GPL-2.0-only").as_deref(),
            Some("MIT")
        );
        assert_eq!(choose("GPL-2.0-only AND MIT OR GPL-3.0-only AND MIT"), None);
    }

    #[test]
    fn an_exception_permits_more() {
        assert_eq!(
            choose("Apache-2.0 WITH LLVM-exception").as_deref(),
            Some("Apache-2.0")
        );
        assert_eq!(choose("GPL-2.0-only WITH Classpath-exception-2.0"), None);
        assert_eq!(
            Expression::parse("A WITH E"),
            Ok(Expression::Licence {
                name: "A".into(),
                exception: Some("E".into())
            })
        );
    }

    #[test]
    fn what_is_no_expression_is_an_error() {
        for text in [
            "", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT MIT", "MIT WITH", "()",
        ] {
            assert!(Expression::parse(text).is_err(), "{text:?}");
        }
    }
}
