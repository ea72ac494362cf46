package internal

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// links finds those of Markdown: the text, the file and what is after #.
	links = regexp.MustCompile(`\[([^\]]*)\]\(([^)#]*)#?([^)]*)\)`)
	// headings finds what can be after #.
	headings = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// TestDocuments follows the links of the documents. A link that is called like a test
// leads to the file that has it: SECURITY.md claims nothing without one.
func TestDocuments(t *testing.T) {
	documents, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	documents = append(documents, "../SECURITY.md", "../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md")
	documents = append(documents, toured(t)...)
	tests := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links.FindAllStringSubmatch(string(text), -1) {
			name, target, anchor := link[1], link[2], link[3]
			if strings.Contains(target, "://") {
				continue
			}
			path := filepath.Join(filepath.Dir(document), target)
			if target == "" {
				path = document
			}
			switch content, err := os.ReadFile(path); {
			case strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz"):
				tests++
				if !bytes.Contains(content, []byte("\nfunc "+name+"(")) {
					t.Errorf("%s names %s, which is not in %s", document, name, target)
				}
			case os.IsNotExist(err):
				t.Errorf("%s links to %s, which is not there", document, target)
			case anchor != "" && !slices.Contains(anchors(string(content)), anchor):
				t.Errorf("%s links to #%s, but %s has no such heading", document, anchor, path)
			}
		}
	}
	if tests < 20 {
		t.Errorf("only %d tests were found", tests)
	}
	security, err := os.ReadFile("../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, claims, _ := strings.Cut(string(security), "\n## What kedge protects from whom\n")
	claims, _, _ = strings.Cut(claims, "\n## ")
	for line := range strings.Lines(claims) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| ") && cells[0] != "| attacker" && cells[0] != "| ---" && !links.MatchString(cells[len(cells)-1]) {
			t.Errorf("SECURITY.md has no test for %q", strings.TrimSpace(line))
		}
	}
}

// TestIndexes wants each page of docs to be listed in the index of docs, and each file of
// decisions in README.md of this folder.
func TestIndexes(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for index, documents := range map[string][]string{"../docs/README.md": pages, "README.md": toured(t)} {
		text, err := os.ReadFile(index)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range documents {
			path, err := filepath.Rel(filepath.Dir(index), document)
			if err != nil {
				t.Fatal(err)
			}
			if document != index && !strings.Contains(string(text), "]("+filepath.ToSlash(path)+")") {
				t.Errorf("%s does not link to %s", index, document)
			}
		}
	}
}

// anchors are the names that GitHub gives the headings of a document.
func anchors(text string) (names []string) {
	for _, heading := range headings.FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}
