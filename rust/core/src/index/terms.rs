//! Search terms of ASCII texts (M4).
//!
//! The general version, for every script, is `foldline.memory.terms`; this one gives the same terms for ASCII.

const MAX_TERM: usize = 64;
const MAX_SPLIT_WORD: usize = 40;
const MAX_PARTS: usize = 6;

/// Terms of an ASCII text, in order, repeats included, joined by spaces; of the last ones no more than `most`.
///
/// Every identifier gives its whole, the segments of a path, and its words. `None` for a text that is not ASCII.
#[must_use]
pub fn ascii_terms(text: &str, most: usize) -> Option<String> {
    if !text.is_ascii() {
        return None;
    }
    let bytes = text.as_bytes();
    let mut found = Terms { joined: String::with_capacity(text.len() + text.len() / 2), starts: Vec::new() };
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_alphanumeric() {
            at += 1;
            continue;
        }
        let end = run_end(bytes, at);
        let run = &text[at..end];
        if is_one_word(run.as_bytes()) {
            found.push(run)
        } else {
            expand(run, &mut found)
        }
        at = end;
    }
    Some(found.last(most))
}

struct Terms {
    joined: String,
    starts: Vec<usize>,
}

impl Terms {
    /// Adds a word in small letters, cut to the longest term.
    fn push(&mut self, word: &str) {
        if !self.starts.is_empty() {
            self.joined.push(' ');
        }
        self.starts.push(self.joined.len());
        self.joined.extend(word.bytes().take(MAX_TERM).map(|byte| char::from(byte.to_ascii_lowercase())));
    }

    fn last(mut self, most: usize) -> String {
        let first = self.starts.len().saturating_sub(most);
        match self.starts.get(first) {
            Some(&start) if start > 0 => self.joined.split_off(start),
            Some(_) => self.joined,
            None => String::new(),
        }
    }
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b'_' | b'.' | b'-' | b'/' | b'\\' | b':' | b'@' | b'\'')
}

fn is_path(byte: u8) -> bool {
    matches!(byte, b'/' | b'\\' | b':' | b'@')
}

fn is_join(byte: u8) -> bool {
    matches!(byte, b'_' | b'.' | b'-' | b',')
}

/// End of the run of words at `at`, which up to three separators join, and commas between thousands.
fn run_end(text: &[u8], mut at: usize) -> usize {
    let word = |at: usize| text[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    loop {
        at += word(at);
        let separators = text[at..].iter().take(4).take_while(|&&byte| is_separator(byte)).count();
        let thousands = text.get(at) == Some(&b',')
            && text[at - 1].is_ascii_digit()
            && text.get(at + 1..at + 4).is_some_and(|digits| digits.iter().all(u8::is_ascii_digit));
        let skip = if thousands { 1 } else { separators };
        if skip == 0 || skip > 3 || !text.get(at + skip).is_some_and(u8::is_ascii_alphanumeric) {
            return at;
        }
        at += skip;
    }
}

/// Whether a run is one word without parts: letters of which at most the first is a capital, or digits.
fn is_one_word(run: &[u8]) -> bool {
    run[1..].iter().all(u8::is_ascii_lowercase) && run[0].is_ascii_alphabetic() || run.iter().all(u8::is_ascii_digit)
}

/// The terms of one run, each once.
fn expand(run: &str, found: &mut Terms) {
    let run = without_apostrophes(run);
    let mut wholes: Vec<String> = Vec::new();
    let mut add = |text: &str| {
        let letters = text.bytes().filter(|&byte| !is_path(byte) && !is_join(byte)).take(MAX_TERM);
        let whole: String = letters.map(|byte| char::from(byte.to_ascii_lowercase())).collect();
        if !wholes.contains(&whole) {
            wholes.push(whole);
        }
    };
    add(&run);
    for segment in parts(&run, is_path) {
        add(segment);
        let words = parts(segment, is_join);
        words.iter().for_each(|word| add(word));
        for word in words {
            camel(word).into_iter().for_each(&mut add);
        }
    }
    for word in escaped(&run) {
        add(word);
        parts(word, is_join).into_iter().for_each(&mut add);
    }
    match wholes.iter().any(|whole| whole.len() > 1) {
        true => wholes.iter().filter(|whole| whole.len() > 1).for_each(|whole| found.push(whole)),
        false => wholes.iter().take(1).for_each(|whole| found.push(whole)),
    }
}

/// Without `'s` at a word's end, and without other apostrophes.
fn without_apostrophes(run: &str) -> String {
    let bytes = run.as_bytes();
    let mut kept = String::with_capacity(run.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\'' {
            kept.push(char::from(bytes[at]));
            at += 1;
            continue;
        }
        let possessive = bytes.get(at + 1).is_some_and(|byte| byte.eq_ignore_ascii_case(&b's'))
            && !bytes.get(at + 2).is_some_and(u8::is_ascii_alphanumeric);
        at += if possessive { 2 } else { 1 };
    }
    kept
}

/// What stands between runs of separators; empty at an end where one stands.
fn parts(text: &str, is_separator: impl Fn(u8) -> bool) -> Vec<&str> {
    let bytes = text.as_bytes();
    let (mut found, mut start, mut at) = (Vec::new(), 0, 0);
    while at < bytes.len() {
        if is_separator(bytes[at]) {
            found.push(&text[start..at]);
            at += bytes[at..].iter().take_while(|&&byte| is_separator(byte)).count();
            start = at;
        } else {
            at += 1;
        }
    }
    found.push(&text[start..]);
    found
}

/// Words inside a camelCase or letter-digit word; none of a hash or blob, whose parts would be noise.
fn camel(word: &str) -> Vec<&str> {
    let bytes = word.as_bytes();
    if bytes.len() > MAX_SPLIT_WORD {
        return Vec::new();
    }
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let run = |from: usize, is: fn(&u8) -> bool| bytes[from..].iter().take_while(|byte| is(byte)).count();
        let capitals = run(at, u8::is_ascii_uppercase);
        let small = run(at + capitals, u8::is_ascii_lowercase);
        // Of capitals before a small letter the last begins the next word.
        let len = match (capitals, small) {
            (0, 0) => run(at, u8::is_ascii_digit),
            (0 | 1, _) | (_, 0) => capitals + small,
            _ => capitals - 1,
        };
        if len > 0 {
            found.push(&word[at..at + len]);
        }
        at += len.max(1);
    }
    if (2..=MAX_PARTS).contains(&found.len()) { found } else { Vec::new() }
}

/// Words after an escaped line break or tab, as quoted text in code and JSON has it.
fn escaped(run: &str) -> Vec<&str> {
    let bytes = run.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if bytes[at] == b'\\' && bytes.get(at + 1).is_some_and(|byte| matches!(byte, b'n' | b'r' | b't')) {
            let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
            let len = bytes[at + 2..].iter().take_while(is_word).count();
            if len > 0 {
                found.push(&run[at + 2..at + 2 + len]);
                at += 2 + len;
                continue;
            }
        }
        at += 1;
    }
    found
}
