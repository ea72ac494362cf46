package jsonsyntax

import (
	"strings"
	"testing"
)

func TestFault(t *testing.T) {
	for text, want := range map[string]string{
		``:                              "",
		`{"a": [1, 2]}`:                 "",
		"{}\n{\"b\": 1}\n":              "",
		"{\n  \"a\": 1,\n}":             "line 3, column 1",
		"{\n  \"ä\": x\n}":              "line 2, column 8",
		"{\"a\": 1}\n{\n\"b\": 1,,\n}":  "line 3, column 8",
		"{\"a\": 1}\n\n{\"b\" 2}":       "line 3, column 6",
		"{\n  \"a\": [1, 2":             "line 2, column 13",
		"{\n  // why\n  \"a\": true\n}": "line 2, column 3",
	} {
		err := Fault([]byte(text))
		if want == "" {
			if err != nil {
				t.Errorf("got fault %v for the valid text %q", err, text)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "not JSON: "+want+": ") {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
