//! Tokens for access by TCP.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use axum::http::header::{AUTHORIZATION, HeaderMap};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pw_error::{Error, Result};
use subtle::ConstantTimeEq;

/// Least length of a token [characters].
const SHORTEST: usize = 24;
/// Largest file of tokens [bytes].
const LONGEST_FILE: u64 = 64 * 1024;

/// How a token was presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// `Authorization: Bearer`, by a program.
    Bearer,
    /// `Authorization: Basic`, the token as the password: by a browser, which sends it along with
    /// whatever any page asks for. Good for reading only.
    Basic,
}

/// Rights of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Reading.
    Read,
    /// Reading, and ordering what the daemon does.
    Order,
}

#[derive(Clone)]
struct Token {
    name: String,
    secret: String,
    role: Role,
}

/// Tokens by name.
#[derive(Clone)]
pub struct Tokens(Vec<Token>);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|token| (&token.name, token.role))).finish()
    }
}

impl Tokens {
    /// Reads a file of lines `NAME TOKEN [ROLE]`; the role is `read` (the default) or `order`.
    ///
    /// # Errors
    /// It cannot be read, others than its owner and group can, or a line makes no sense.
    pub fn load(path: &Path) -> Result<Self> {
        let text = read_secret(path, "tokens")?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, name: &str) -> Result<Self> {
        let remedy = format!(
            "write lines of a name, a token of at least {SHORTEST} characters, as from \
             `openssl rand -hex 24`, and, if it shall do more than read, `order`"
        );
        let mut tokens: Vec<Token> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // No error shows the line, which may contain a token.
            let wrong = |what: &str| {
                Err(Error::bad_input(format!("{name}:{}: {what}", at + 1), remedy.clone()))
            };
            let mut words = line.split_whitespace();
            let (Some(name), Some(token), role, None) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                return wrong("this is not a name, a token and a role");
            };
            let role = match role {
                Some("read") | None => Role::Read,
                Some("order") => Role::Order,
                Some(_) => return wrong("the role is neither read nor order"),
            };
            if token.len() < SHORTEST {
                return wrong("the token is too short");
            }
            if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return wrong("the token has characters that no header can carry");
            }
            if tokens.iter().any(|other| other.secret == token) {
                return wrong("this token is there twice");
            }
            tokens.push(Token { name: name.to_owned(), secret: token.to_owned(), role });
        }
        if tokens.is_empty() {
            return Err(Error::bad_input(format!("{name}: there is no token in it"), remedy));
        }
        Ok(Self(tokens))
    }

    /// Name, presentation and rights of the token in these headers.
    pub fn owner(&self, headers: &HeaderMap) -> Option<(String, Shown, Role)> {
        let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
        let (scheme, credentials) = value.split_once(' ')?;
        let (token, shown) = if scheme.eq_ignore_ascii_case("bearer") {
            (credentials.trim().to_owned(), Shown::Bearer)
        } else if scheme.eq_ignore_ascii_case("basic") {
            let pair = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
            (pair.split_once(':')?.1.to_owned(), Shown::Basic)
        } else {
            return None;
        };
        // All are compared, each in constant time, against timing attacks.
        let mut owner = None;
        for right in &self.0 {
            if bool::from(right.secret.as_bytes().ct_eq(token.as_bytes())) {
                owner = Some(right);
            }
        }
        owner.map(|token| (token.name.clone(), shown, token.role))
    }
}

/// Reads a secret file.
///
/// # Errors
/// It cannot be read, is too long, or others than its owner and group can read it.
pub fn read_secret(path: &Path, what: &str) -> Result<String> {
    let cannot = |error: std::io::Error| {
        Error::bad_input(format!("cannot read tcp.{what}, {}", path.display()), "the API is offered by TCP with a token and TLS only: name files that the daemon can read").caused_by(error)
    };
    let data = std::fs::metadata(path).map_err(cannot)?;
    if data.permissions().mode() & 0o007 != 0 {
        return Err(Error::bad_input(
            format!("tcp.{what}, {}: every user of this host may use it", path.display()),
            format!("chmod o= {}", path.display()),
        ));
    }
    if data.len() > LONGEST_FILE {
        return Err(Error::bad_input(
            format!("tcp.{what}, {}: longer than {LONGEST_FILE} bytes", path.display()),
            "name the right file",
        ));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "# who\nprometheus 0123456789abcdef0123456789\n\nadmin ABCDEFGHIJKLMNOPQRSTUVWX order\n";

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().expect("a header"));
        headers
    }

    #[test]
    fn a_token_opens_as_bearer_and_as_a_browsers_password() {
        let tokens = Tokens::parse(GOOD, "tokens").expect("good");
        let of = |value: &str| tokens.owner(&headers(value));
        assert_eq!(
            of("Bearer 0123456789abcdef0123456789"),
            Some(("prometheus".into(), Shown::Bearer, Role::Read))
        );
        let basic = format!("basic {}", STANDARD.encode("me:ABCDEFGHIJKLMNOPQRSTUVWX"));
        assert_eq!(of(&basic), Some(("admin".into(), Shown::Basic, Role::Order)));
        for wrong in
            ["Bearer ", "Bearer prometheus", "0123456789abcdef0123456789", "Basic !", "Digest x"]
        {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(tokens.owner(&HeaderMap::new()), None);
        assert!(!format!("{tokens:?}").contains("ABCDEF"), "a token is never printed");
    }

    #[test]
    fn a_token_for_reading_orders_nothing() {
        let text = "scraper 0123456789abcdef0123456789\nadmin ABCDEFGHIJKLMNOPQRSTUVWX order";
        let tokens = Tokens::parse(text, "tokens").expect("good");
        let role = |token: &str| {
            tokens.owner(&headers(&format!("Bearer {token}"))).map(|(_, _, role)| role)
        };
        assert_eq!(role("0123456789abcdef0123456789"), Some(Role::Read));
        assert_eq!(role("ABCDEFGHIJKLMNOPQRSTUVWX"), Some(Role::Order));
    }

    #[test]
    fn a_bad_file_of_tokens_is_named_by_line_and_tells_no_token() {
        for (text, what) in [
            ("", "no token in it"),
            ("\n0123456789abcdef0123456789", "t:2: this is not a name, a token and a role"),
            ("a short", "t:1: the token is too short"),
            ("a x x x", "t:1: this is not"),
            ("a 0123456789abcdef0123456789 write", "t:1: the role is neither"),
            ("a ÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄÄ", "no header can carry"),
            (
                "a 0123456789abcdef0123456789\nb 0123456789abcdef0123456789",
                "t:2: this token is there twice",
            ),
        ] {
            let error = Tokens::parse(text, "t").expect_err(text);
            assert!(error.what.contains(what), "{}", error.what);
            assert!(!error.what.contains("0123456789") && !error.remedy.is_empty());
        }
    }

    #[test]
    fn no_header_and_no_file_stops_it() {
        let tokens = Tokens::parse(GOOD, "tokens").expect("good");
        pw_cases::check!().with_type::<(Vec<u8>, String)>().for_each(|(bytes, text)| {
            if let Ok(value) = axum::http::HeaderValue::from_bytes(bytes) {
                let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
                assert_eq!(tokens.owner(&headers), None);
            }
            drop(Tokens::parse(text, "t"));
        });
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens");
        std::fs::write(&path, GOOD).expect("written");
        for (mode, good) in [(0o644, false), (0o604, false), (0o640, true), (0o600, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
            assert_eq!(Tokens::load(&path).is_ok(), good, "{mode:o}");
        }
        let error = Tokens::load(Path::new("/nonexistent/tokens")).expect_err("not there");
        assert!(error.what.contains("/nonexistent/tokens"));
    }
}
