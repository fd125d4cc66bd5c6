//! Long lists in pages.
//!
//! A page's token says where the page before it ended, by the key of its last item. It's valid only for the request
//! that it was made for, with any page size. The server keeps nothing between two pages.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;

use tonic::Status;

use crate::{limits, status};

/// A page that a client asks for.
#[derive(Debug)]
pub struct Page<K> {
    /// The most items that the page has.
    size: usize,
    /// The key of the last item before the page, or `None` for the first page.
    after: Option<K>,
    /// A hash of the rest of the request.
    scope: u64,
}

impl<K: FromStr + Display> Page<K> {
    /// Makes the page that `page_size` and `page_token` of a request ask for. `scope` is the part of the request that
    /// decides what is listed.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` when the token isn't one of this list.
    pub fn asked(page_size: u32, page_token: &str, scope: impl Hash) -> Result<Self, Status> {
        let mut hasher = DefaultHasher::new();
        scope.hash(&mut hasher);
        let scope = hasher.finish();
        let size = match page_size {
            0 => limits::PAGE,
            size => size.min(limits::PAGE_MOST),
        };
        let after = match page_token {
            "" => None,
            token => Some(key(token, scope).ok_or_else(|| {
                let message = "this is no token of this list: begin with an empty one";
                status::invalid("page_token", message)
            })?),
        };
        Ok(Self {
            size: size as usize,
            after,
            scope,
        })
    }

    /// The most items that the page has.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The key of the last item before the page, or `None` for the first page.
    pub fn after(&self) -> Option<&K> {
        self.after.as_ref()
    }

    /// Returns the page's items, from those that come after [`Self::after`], and the token of the next page, which is
    /// empty if there is none. Takes at most one item more than the page has.
    pub fn cut<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        key: impl Fn(&T) -> K,
    ) -> (Vec<T>, String) {
        let mut items = items.into_iter();
        let page: Vec<T> = items.by_ref().take(self.size).collect();
        let last = page.last().filter(|_| items.next().is_some());
        let token = last.map(|last| format!("{:016x}-{}", self.scope, key(last)));
        (page, token.unwrap_or_default())
    }
}

/// Returns the key in a token of this scope.
fn key<K: FromStr>(token: &str, scope: u64) -> Option<K> {
    let (of, key) = token.split_once('-')?;
    let same = of.len() == 16 && u64::from_str_radix(of, 16) == Ok(scope);
    key.parse().ok().filter(|_| same)
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use tonic_types::StatusExt;

    use super::*;

    /// Returns the numbers below `count`, page by page.
    fn pages(count: u64, size: u32) -> Vec<Vec<u64>> {
        let mut pages = Vec::new();
        let mut token = String::new();
        loop {
            let page = Page::asked(size, &token, "numbers").unwrap();
            let start = page.after().map_or(0, |last: &u64| last + 1);
            let (items, next) = page.cut(start..count, |number| *number);
            pages.push(items);
            if next.is_empty() {
                return pages;
            }
            token = next;
        }
    }

    #[test]
    fn all_items_come_once_and_in_order() {
        assert_eq!(pages(5, 2), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(pages(4, 2), [vec![0, 1], vec![2, 3]]);
        assert_eq!(pages(0, 2), [Vec::<u64>::new()]);
    }

    #[test]
    fn a_page_has_a_default_size_and_a_largest_one() {
        for (asked, size) in [(0, 1000), (1, 1), (10_000, 10_000), (u32::MAX, 10_000)] {
            assert_eq!(Page::<u64>::asked(asked, "", ()).unwrap().size(), size);
        }
    }

    #[test]
    fn a_token_that_is_not_of_this_list_is_a_wrong_argument() {
        let page = Page::<u64>::asked(1, "", ("a", "list")).unwrap();
        let (_, good) = page.cut([7, 8], |number| *number);
        let again = Page::<u64>::asked(2, &good, ("a", "list")).unwrap();
        assert_eq!(again.after(), Some(&7));
        let bad = [
            (&*good, ("another", "list")),
            (&*format!("{good}x"), ("a", "list")),
            (&*format!("0{good}"), ("a", "list")),
            ("7", ("a", "list")),
            ("-", ("a", "list")),
        ];
        for (token, scope) in bad {
            let status = Page::<u64>::asked(1, token, scope).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{token}");
            let details = status.get_details_bad_request().unwrap();
            assert_eq!(details.field_violations[0].field, "page_token");
        }
    }

    #[test]
    fn a_name_may_be_the_key() {
        let page = Page::<String>::asked(1, "", ()).unwrap();
        let (_, token) = page.cut(["a-b", "c"], |name| (*name).to_owned());
        let next = Page::<String>::asked(1, &token, ()).unwrap();
        assert_eq!(next.after().map(String::as_str), Some("a-b"));
    }
}
