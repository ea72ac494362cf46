package upgrades

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestReport checks that a server can read the reports of nodes, whatever their messages are.
func TestReport(t *testing.T) {
	for name, message := range map[string]string{
		"none":             "",
		"a short one":      "no space left on device",
		"a long one":       strings.Repeat("x", 3*maxMessage),
		"one of quotes":    strings.Repeat(`"`, 3*maxMessage),
		"one of brackets":  strings.Repeat("<", 3*maxMessage),
		"one of controls":  strings.Repeat("\x1b", 3*maxMessage),
		"a broken one":     strings.Repeat("\xff", 3*maxMessage),
		"one with umlauts": strings.Repeat("ü", 3*maxMessage),
	} {
		value := FormatReport(Report{ID: strings.Repeat("i", 256), Stage: Failed, Message: message})
		got, err := ParseReport(value)
		if err != nil || got.Stage != Failed {
			t.Errorf("%s: %v", name, err)
		}
		if (got.Message == "") != (message == "") || !utf8.ValidString(got.Message) {
			t.Errorf("%s: got %q", name, got.Message)
		}
	}
}

// TestHostileReport checks that the report of a hostile node cannot control the reader's terminal, and
// cannot pass for a message of the Plan.
func TestHostileReport(t *testing.T) {
	got, err := ParseReport("{\"id\":\"1\",\"stage\":\"Failed\",\"message\":\"a\\u001b]0;b\\u0007\\r\\u009b2J\\u202ec\\nComplete: 3 nodes\"}")
	if want := "a ]0;b   2J c\n  Complete: 3 nodes"; err != nil || got.Message != want {
		t.Errorf("got %q, %v, want %q", got.Message, err, want)
	}
	for _, value := range []string{"", "x", "{}", `{"id":"1","stage":"Done"}`, `{"stage":"Failed"}`, strings.Repeat(" ", maxReport+1)} {
		if got, err := ParseReport(value); err == nil {
			t.Errorf("%.20q is %+v", value, got)
		}
	}
}
