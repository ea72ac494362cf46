package htpasswd

import "crypto/md5" //nolint:gosec // users have such lists

const (
	apr1Prefix = "$apr1$"
	// apr1MaxSalt and apr1Length are how many characters the salt has at most, and how many
	// the hash has.
	apr1MaxSalt = 8
	apr1Length  = 22
	apr1Rounds  = 1000
	// apr1Digits are the digits of the hash.
	apr1Digits = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// apr1Order is the order in which bytes of the digest are written, three at a time.
var apr1Order = [...][3]int{{0, 6, 12}, {1, 7, 13}, {2, 8, 14}, {3, 9, 15}, {4, 10, 5}}

// apr1 returns the hash that htpasswd writes by default, without prefix and salt.
// Source: apr_md5_encode in crypto/apr_md5.c of the Apache Portable Runtime utilities.
func apr1(password, salt string) string {
	inner := md5.Sum([]byte(password + salt + password)) //nolint:gosec // see above
	outer := []byte(password + apr1Prefix + salt)
	for rest := len(password); rest > 0; rest -= md5.Size {
		outer = append(outer, inner[:min(rest, md5.Size)]...)
	}
	for bits := len(password); bits > 0; bits >>= 1 {
		if bits&1 == 1 {
			outer = append(outer, 0)
		} else {
			outer = append(outer, password[0])
		}
	}
	sum := md5.Sum(outer) //nolint:gosec // see above
	text := make([]byte, 0, 2*(len(password)+md5.Size)+apr1MaxSalt)
	for round := range apr1Rounds {
		text = text[:0]
		if round%2 == 1 {
			text = append(text, password...)
		} else {
			text = append(text, sum[:]...)
		}
		if round%3 != 0 {
			text = append(text, salt...)
		}
		if round%7 != 0 {
			text = append(text, password...)
		}
		if round%2 == 1 {
			text = append(text, sum[:]...)
		} else {
			text = append(text, password...)
		}
		sum = md5.Sum(text) //nolint:gosec // see above
	}
	written := make([]byte, 0, apr1Length)
	digits := func(value uint32, count int) {
		for range count {
			written = append(written, apr1Digits[value&0x3f])
			value >>= 6
		}
	}
	for _, at := range apr1Order {
		digits(uint32(sum[at[0]])<<16|uint32(sum[at[1]])<<8|uint32(sum[at[2]]), 4)
	}
	digits(uint32(sum[11]), 2)
	return string(written)
}
