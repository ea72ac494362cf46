package logging

import (
	"bytes"
	"strings"

	"github.com/sirupsen/logrus"
)

// coreDNS is the name of the component whose plugin/pkg/log begins lines with a level
// in brackets.
//
//upstream:relies-on github.com/coredns/coredns/plugin/pkg/log/log.go
const coreDNS = "dns"

// standard is where the standard library's process-wide loggers write. Lines of
// log/slog's begin with a level (log/slog/logger.go, defaultHandler); those of others
// are informational.
//
//upstream:relies-on std/log/slog/logger.go defaultLogger
//upstream:relies-on std/log/slog/handler.go defaultHandler.Handle
type standard struct{}

func (standard) Write(line []byte) (int, error) {
	text := string(bytes.TrimRight(line, "\n"))
	entry := logrus.NewEntry(logrus.StandardLogger())
	level := logrus.InfoLevel
	word, rest, found := strings.Cut(text, " ")
	name := strings.TrimSuffix(strings.TrimPrefix(word, "["), "]")
	// Both write theirs in capital letters.
	if parsed, err := logrus.ParseLevel(name); found && err == nil && name == strings.ToUpper(name) {
		// Who logs what is fatal ends the process itself; logrus must not.
		level, text = max(parsed, logrus.ErrorLevel), rest
		if name != word {
			entry = entry.WithField("component", coreDNS)
		}
		// A resolver that CoreDNS asks does not answer: no fault of this host's.
		if strings.HasPrefix(rest, "plugin/errors: ") {
			level = max(level, logrus.WarnLevel)
		}
	}
	entry.Log(level, text)
	return len(line), nil
}
