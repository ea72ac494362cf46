// Package jsonsyntax finds where a text stops being JSON. kedge reads users' files as
// YAML, of which JSON is a part, so a fault in a JSON file would be told as one of
// YAML. The packages config and manifests call it for files that end in .json.
package jsonsyntax

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Extension is how the name of a JSON file ends.
const Extension = ".json"

// Fault returns the first syntax error of a text that has JSON values one after the
// other, with its line and column, both counted from 1. A column is a character. The
// error is nil if the text is JSON.
func Fault(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var value json.RawMessage
		err := decoder.Decode(&value)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			continue
		}
		// The offset counts from the start of the text, and is one beyond the fault.
		at, why := len(text), "the text ends in the middle of a value"
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			at, why = int(syntax.Offset)-1, syntax.Error()
		}
		line, column := position(text, at)
		return fmt.Errorf("not JSON: line %d, column %d: %s", line, column, why)
	}
}

func position(text []byte, at int) (line, column int) {
	before := text[:min(max(at, 0), len(text))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1
}
