package why

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
)

// longest is how much of a message of others a sentence has.
const longest = 300

// plain makes a message of others a part of a sentence.
func plain(text string) string {
	return strings.TrimSuffix(foreigntext.Cut(line(text), longest), ".")
}

// line returns a text as one line that cannot control a terminal. Users of one namespace may have written parts of it, and programs in their containers.
func line(text string) string { return strings.Join(strings.Fields(foreigntext.Printable(text)), " ") }

// since returns how long ago a time was, such as 5m.
func since(w *world, t time.Time) string { return duration.HumanDuration(w.Now().Sub(t)) }

// afterLast returns what stands behind the last mark in a text, or the text.
func afterLast(text, mark string) string {
	if i := strings.LastIndex(text, mark); i >= 0 {
		return text[i+len(mark):]
	}
	return text
}

var rpcCode = regexp.MustCompile(`rpc error: code = \w+ desc = `)

// withoutCodes returns a text without what gRPC puts in front of errors.
func withoutCodes(text string) string { return rpcCode.ReplaceAllString(text, "") }

// few joins words for a sentence, and only the first ones of many.
func few(words []string) string {
	const shown = 5
	if len(words) <= shown {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:shown], ", "), len(words)-shown)
}
