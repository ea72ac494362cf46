package guide

import (
	"slices"
	"strings"
	"testing"
)

func TestBlocks(t *testing.T) {
	page := Page{Name: "docs/x.md", Text: `# X
` + "```yaml" + `
a: b
` + "```" + `
<!-- not run: needs a second host; tests/e2e/join TestJoin, internal/cli TestX do the same -->
` + "```sh" + `
# a comment
sudo kedge kubectl apply -f - <<'END'
kind: X
END
sudo kedge status \
  --local  # behind
` + "```\n"}
	blocks, err := page.Blocks()
	if err != nil || len(blocks) != 2 {
		t.Fatalf("got %+v, %v", blocks, err)
	}
	if b := blocks[0]; b.Language != "yaml" || b.Text != "a: b\n" || b.NotRun != "" || b.String() != "docs/x.md:3" {
		t.Errorf("the first is %+v", b)
	}
	b := blocks[1]
	if b.NotRun != "needs a second host" || !slices.Equal(b.Tests, []string{"tests/e2e/join TestJoin", "internal/cli TestX"}) {
		t.Errorf("the second is %+v", b)
	}
	want := []string{"sudo kedge kubectl apply -f - <<'END'", "sudo kedge status --local"}
	if commands := b.Commands(); !slices.Equal(commands, want) {
		t.Errorf("its commands are %q, want %q", commands, want)
	}
}

func TestBlocksRefuse(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"```sh\nls\n", "not closed"},
		{"<!-- not run -->\n```sh\nls\n```\n", "has to be"},
	} {
		if _, err := (Page{Name: "x.md", Text: test.text}).Blocks(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %q", test.text, err, test.want)
		}
	}
}
