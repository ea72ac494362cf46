package foreigntext

import "testing"

func TestCut(t *testing.T) {
	for _, test := range []struct {
		text  string
		limit int
		want  string
	}{{"text", 4, "text"}, {"a text", 5, "a …"}, {"aü text", 6, "a …"}, {"text", 3, ""}, {"text", 0, ""}, {"long text", 8, "long …"}} {
		if got := Cut(test.text, test.limit); got != test.want {
			t.Errorf("%q, %d: got %q", test.text, test.limit, got)
		}
	}
}

func TestPrintable(t *testing.T) {
	if got, want := Printable("al\x1b[2Jice\xff\nwell"), "al [2Jice\ufffd\n  well"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
