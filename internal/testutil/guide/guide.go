// Package guide reads the user's documents, README.md and docs/*.md, for the tests
// that run their commands and compare their tables with the code: internal/cli and
// tests/e2e/documents. Only tests import it.
package guide

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Page is one document.
type Page struct {
	// Name is the path below the source tree, such as docs/volumes.md.
	Name, Text string
}

// Block is a fenced block of a page.
type Block struct {
	Page string
	// Line is the number of the first line after the fence, from 1.
	Line int
	// Language is the word behind the fence, such as sh or yaml, and may be empty.
	Language, Text string
	// NotRun is why no test runs a block of sh on a cluster, from the comment before
	// it: `<!-- not run: REASON -->`. It is empty for a block that
	// tests/e2e/documents runs.
	NotRun string
	// Tests are those that do what a block with NotRun does, as FOLDER NAME. The
	// comment names them behind the reason: `; FOLDER NAME, FOLDER NAME do the same`.
	Tests []string
}

// String is where the block is, as FILE:LINE.
func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// Pages returns README.md and the pages of docs, in the order of their names, of a
// source tree. It fails if one cannot be read.
func Pages(repository string) ([]Page, error) {
	names, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	var pages []Page
	for _, path := range append([]string{filepath.Join(repository, "README.md")}, names...) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read page: %w", err)
		}
		name, err := filepath.Rel(repository, path)
		if err != nil {
			return nil, fmt.Errorf("read page: %w", err)
		}
		pages = append(pages, Page{Name: filepath.ToSlash(name), Text: string(text)})
	}
	return pages, nil
}

// mark is the comment before a block that no test runs as it is.
var mark = regexp.MustCompile(`^<!-- not run: ([^;]+?)(?:; (.+) (?:does|do) the same)? -->$`)

// Blocks returns the fenced blocks of the page. It fails if a fence is left open, or
// if a comment that begins like a mark is none.
func (p Page) Blocks() ([]Block, error) {
	var blocks []Block
	var open *Block
	var before string
	number := 0
	for line := range strings.Lines(p.Text) {
		number++
		bare := strings.TrimRight(line, "\n")
		fence, isFence := strings.CutPrefix(bare, "```")
		switch {
		case open != nil && isFence:
			blocks = append(blocks, *open)
			open, before = nil, ""
		case open != nil:
			open.Text += line
		case isFence:
			open = &Block{Page: p.Name, Line: number + 1, Language: fence}
			if match := mark.FindStringSubmatch(before); match != nil {
				open.NotRun = match[1]
				if match[2] != "" {
					open.Tests = strings.Split(match[2], ", ")
				}
			} else if strings.HasPrefix(before, "<!-- not run") {
				return nil, fmt.Errorf("%s:%d: %q has to be <!-- not run: REASON -->, or <!-- not run: REASON; FOLDER TEST does the same -->", p.Name, number-1, before)
			}
		default:
			before = bare
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s: the block is not closed", *open)
	}
	return blocks, nil
}

// heredoc is the word that ends the input of a command, as in <<'END'.
var heredoc = regexp.MustCompile(`<<-?\s*['"]?([A-Za-z_]+)['"]?`)

// Commands returns the lines of a block of sh that are commands: no comments, and
// nothing of what a command reads. Lines that end in a backslash are joined with the
// next. What a comment behind a command says is left out.
func (b Block) Commands() []string {
	var commands []string
	end, joined := "", ""
	for line := range strings.Lines(b.Text) {
		line = strings.TrimSpace(line)
		if end != "" {
			if line == end {
				end = ""
			}
			continue
		}
		if rest, continues := strings.CutSuffix(line, "\\"); continues {
			joined += rest
			continue
		}
		line, joined = joined+line, ""
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if match := heredoc.FindStringSubmatch(line); match != nil {
			end = match[1]
		}
		line, _, _ = strings.Cut(line, "  #")
		commands = append(commands, strings.TrimSpace(line))
	}
	return commands
}
