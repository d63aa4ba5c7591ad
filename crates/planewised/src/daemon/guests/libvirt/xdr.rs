//! External data representation (RFC 4506), as far as libvirt's messages need it.

/// Writes values one after the other.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// The bytes written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// An unsigned number.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(value.to_be_bytes());
        self
    }

    /// A signed number.
    #[must_use]
    pub fn i32(self, value: i32) -> Self {
        self.u32(u32::from_ne_bytes(value.to_ne_bytes()))
    }

    /// Bytes whose number is known to the reader.
    #[must_use]
    pub fn fixed(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// A text.
    #[must_use]
    pub fn string(self, text: &str) -> Self {
        self.u32(u32::try_from(text.len()).unwrap_or(u32::MAX)).fixed(text.as_bytes())
    }
}

/// Reads values one after the other; none when the bytes end too early or are none of that kind.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of these bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The bytes that have not been read.
    pub const fn remaining(&self) -> &'a [u8] {
        self.bytes
    }

    /// An unsigned number.
    pub fn u32(&mut self) -> Option<u32> {
        let (number, remaining) = self.bytes.split_first_chunk::<4>()?;
        self.bytes = remaining;
        Some(u32::from_be_bytes(*number))
    }

    /// A signed number.
    pub fn i32(&mut self) -> Option<i32> {
        self.u32().map(|value| i32::from_ne_bytes(value.to_ne_bytes()))
    }

    /// So many bytes.
    pub fn fixed(&mut self, length: usize) -> Option<&'a [u8]> {
        let padded = length.checked_next_multiple_of(4)?;
        let (taken, remaining) = self.bytes.split_at_checked(padded)?;
        self.bytes = remaining;
        taken.get(..length)
    }

    /// A text. Bytes that are not UTF-8 are replaced: names are not chosen here.
    pub fn string(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        self.fixed(length).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// A text that may be missing.
    pub fn optional_string(&mut self) -> Option<Option<String>> {
        match self.u32()? {
            0 => Some(None),
            1 => self.string().map(Some),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        pw_cases::check!().with_type::<(u32, i32, [u8; 16], String)>().for_each(
            |(unsigned, signed, fixed, text)| {
                let bytes = Writer::default()
                    .u32(*unsigned)
                    .i32(*signed)
                    .fixed(fixed)
                    .string(text)
                    .u32(1)
                    .string(text)
                    .u32(0)
                    .into_bytes();
                assert_eq!(bytes.len() % 4, 0);
                let mut reader = Reader::new(&bytes);
                assert_eq!(reader.u32(), Some(*unsigned));
                assert_eq!(reader.i32(), Some(*signed));
                assert_eq!(reader.fixed(16), Some(fixed.as_slice()));
                assert_eq!(reader.string().as_ref(), Some(text));
                assert_eq!(reader.optional_string(), Some(Some(text.clone())));
                assert_eq!(reader.optional_string(), Some(None));
                assert!(reader.remaining().is_empty());
            },
        );
    }

    #[test]
    fn no_bytes_stop_the_reader() {
        pw_cases::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let mut reader = Reader::new(bytes);
            while reader.string().is_some() {}
            let mut reader = Reader::new(bytes);
            while reader.optional_string().is_some() {}
        });
    }
}
