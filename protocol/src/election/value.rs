//! The value of the register of oracles or masters: who leads, in which term, and up to which limit.

use crate::types::Timestamp;

/// The first byte of a stored value. Another one is of another version of this program.
const FORMAT: u8 = 2;
/// A name or an address may have so many bytes.
const TEXT_BYTES_MAX: usize = 1024;
/// So many peers are stored at most.
pub(super) const PEERS_MAX: usize = 16;

/// One start of a process that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The stable name, for example "tso-0".
    pub name: String,
    /// The address for clients: HOST:PORT.
    pub address: String,
    /// A random number of this start, never 0.
    pub incarnation: u64,
    /// [`Peer::replica`] of its folder; 0: it gives no promises and counts none.
    pub replica: u64,
}

/// A replica by its folder, whichever process runs in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// A random number of the folder, never 0. A folder that was replaced has another one, because the promises and limits
    /// of the former folder are lost.
    pub replica: u64,
    /// The address for requests of promises: HOST:PORT.
    pub address: String,
}

/// Which swap stored a value: a start of a process, and which of its swaps.
///
/// The register's own name of a write comes only with an unknown outcome. This one is there as well when a swap was
/// given up on, and when the stored version changed without a swap, as by a label on a Kubernetes object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapName {
    /// [`Member::incarnation`].
    pub incarnation: u64,
    /// Which of its swaps, from 1 on; 0 is the register's first value.
    pub sequence: u64,
}

/// The value of the register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// Grows with each takeover, from 1 on.
    pub term: u64,
    /// Every timestamp that an oracle granted in this term and before is below. The next term grants from here on. Zero for a master.
    pub limit: Timestamp,
    /// Which register this is: a random number of the start that stored the first value. Oracles of two registers must
    /// not serve one cluster.
    pub register: u64,
    /// The leader; none after a planned hand-over: anyone may take over at once.
    pub holder: Option<Member>,
    /// If it isn't empty: the only replicas that may take over from the holder, beside the holder's own. The holder may
    /// lead by the promises of all of these. Empty: any replica may take over, and promises don't count.
    pub promisers: Vec<Peer>,
    /// The swap that stored this.
    pub swap: SwapName,
}

/// A stored value is not one of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the register holds {bytes} bytes that are no leadership: {reason}")]
pub struct DecodeError {
    /// How many bytes were stored.
    pub bytes: usize,
    /// The reason.
    pub reason: &'static str,
}

impl Leadership {
    /// The first value of a register, before any term: this start stores it, and nobody leads.
    pub fn first(incarnation: u64, limit: Timestamp) -> Self {
        Self {
            term: 0,
            limit,
            register: incarnation,
            holder: None,
            promisers: Vec::new(),
            swap: SwapName {
                incarnation,
                sequence: 0,
            },
        }
    }

    /// The bytes to store: a format byte, then term, limit, register and the swap's two numbers (8 bytes each, little
    /// endian), then the holder: a byte 0 for none, or 1, its incarnation and replica (8 bytes each), name and address,
    /// each with its length (2 bytes) before. Then the number of promisers (1 byte), and of each its replica and address.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        let (limit, swap) = (self.limit.as_u64(), self.swap);
        let numbers = [
            self.term,
            limit,
            self.register,
            swap.incarnation,
            swap.sequence,
        ];
        for number in numbers {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.push(u8::from(self.holder.is_some()));
        if let Some(holder) = &self.holder {
            bytes.extend_from_slice(&holder.incarnation.to_le_bytes());
            bytes.extend_from_slice(&holder.replica.to_le_bytes());
            put_text(&mut bytes, &holder.name);
            put_text(&mut bytes, &holder.address);
        }
        let promisers = &self.promisers[..self.promisers.len().min(PEERS_MAX)];
        bytes.push(u8::try_from(promisers.len()).unwrap_or(u8::MAX));
        for peer in promisers {
            bytes.extend_from_slice(&peer.replica.to_le_bytes());
            put_text(&mut bytes, &peer.address);
        }
        bytes
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    /// [`DecodeError`] if no oracle of this version stored it.
    pub fn decode(stored: &[u8]) -> Result<Self, DecodeError> {
        let error = |reason| DecodeError {
            bytes: stored.len(),
            reason,
        };
        if stored.first().is_some_and(|format| *format != FORMAT) {
            return Err(error("their format is unknown"));
        }
        let mut rest = stored.get(1..).unwrap_or_default();
        let value = Self::decode_from(&mut rest).ok_or_else(|| error("they end early"))?;
        if !rest.is_empty() {
            return Err(error("something follows after the end"));
        }
        Ok(value)
    }

    fn decode_from(rest: &mut &[u8]) -> Option<Self> {
        let (term, limit, register) = (number(rest)?, number(rest)?, number(rest)?);
        let swap = SwapName {
            incarnation: number(rest)?,
            sequence: number(rest)?,
        };
        let holder = match take(rest, 1)? {
            [0] => None,
            _ => Some(Member {
                incarnation: number(rest)?,
                replica: number(rest)?,
                name: text(rest)?,
                address: text(rest)?,
            }),
        };
        let [promisers] = *take(rest, 1)? else {
            return None;
        };
        let promisers = (0..promisers).map(|_| {
            Some(Peer {
                replica: number(rest)?,
                address: text(rest)?,
            })
        });
        Some(Self {
            term,
            limit: Timestamp::from_u64(limit),
            register,
            holder,
            promisers: promisers.collect::<Option<_>>()?,
            swap,
        })
    }
}

impl Member {
    /// Whether the register takes its name and address.
    pub fn fits(&self) -> bool {
        self.name.len().max(self.address.len()) <= TEXT_BYTES_MAX
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    // Names and addresses that are longer are refused at the start of a process.
    let text = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
    let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(text);
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    take(rest, 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn text(rest: &mut &[u8]) -> Option<String> {
    let len = take(rest, 2)?.try_into().ok().map(u16::from_le_bytes)?;
    let text = take(rest, usize::from(len))?;
    std::str::from_utf8(text).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(holder: Option<Member>) -> Leadership {
        Leadership {
            term: 7,
            limit: Timestamp::from_millis(1_700_000_000_000),
            register: 5,
            holder,
            promisers: [8, 9]
                .map(|replica| Peer {
                    replica,
                    address: format!("there:{replica}"),
                })
                .into(),
            swap: SwapName {
                incarnation: 3,
                sequence: 9,
            },
        }
    }

    #[test]
    fn what_was_stored_is_read() {
        let holder = Member {
            name: "tso-0".into(),
            address: "127.0.0.1:7400".into(),
            incarnation: u64::MAX,
            replica: 7,
        };
        for value in [value(None), value(Some(holder))] {
            assert_eq!(Leadership::decode(&value.encode()), Ok(value));
        }
    }

    #[test]
    fn what_no_oracle_stored_is_refused() {
        let holder = Member {
            name: "tso-0".into(),
            address: "here:1".into(),
            incarnation: 1,
            replica: 7,
        };
        let whole = value(Some(holder)).encode();
        for len in 0..whole.len() {
            Leadership::decode(&whole[..len]).unwrap_err();
        }
        let longer = [&whole[..], &[0]].concat();
        Leadership::decode(&longer).unwrap_err();
        let other = [&[FORMAT + 1], &whole[1..]].concat();
        let error = Leadership::decode(&other).unwrap_err();
        assert!(error.to_string().contains("format"), "{error}");
    }
}
