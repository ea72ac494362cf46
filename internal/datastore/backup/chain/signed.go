package chain

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
)

// A signed file is a line of JSON, a line with the signature of the first line in base64, and then whatever the JSON has the
// checksum of.

// errForged says that a signature does not match.
var errForged = errors.New("it was changed or forged: its signature does not match")

// signed returns a file that begins with head.
func signed(head []byte, signature []byte, rest []byte) []byte {
	file := make([]byte, 0, len(head)+base64.StdEncoding.EncodedLen(len(signature))+2+len(rest))
	file = append(append(file, head...), '\n')
	file = append(base64.StdEncoding.AppendEncode(file, signature), '\n')
	return append(file, rest...)
}

// split takes a signed file apart. Nothing is verified.
func split(file []byte) (head, signature, rest []byte, err error) {
	head, rest, ok := bytes.Cut(file, []byte("\n"))
	text, rest, ok2 := bytes.Cut(rest, []byte("\n"))
	if !ok || !ok2 || len(text) > base64.StdEncoding.EncodedLen(ed25519.SignatureSize) {
		return nil, nil, nil, errors.New("it is cut off, or is not a file of a backup")
	}
	if signature, err = base64.StdEncoding.Strict().DecodeString(string(text)); err != nil {
		return nil, nil, nil, errForged
	}
	return head, signature, rest, nil
}

// decode reads a head. A later version of kedge may have written more into it.
func decode(head []byte, into any) error {
	if err := json.Unmarshal(head, into); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	return nil
}
