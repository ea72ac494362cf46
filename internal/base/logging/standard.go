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

// standard is the output of the standard library's process-wide loggers. Lines of
// log/slog begin with a level (log/slog/logger.go, defaultHandler). All other lines are
// logged as information.
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
	// Both loggers write their levels in capital letters.
	if parsed, err := logrus.ParseLevel(name); found && err == nil && name == strings.ToUpper(name) {
		// A logger of fatal messages ends the process itself. logrus must not.
		level, text = max(parsed, logrus.ErrorLevel), rest
		if name != word {
			entry = entry.WithField("component", coreDNS)
		}
		// A resolver that CoreDNS asks does not answer. That is not a fault of this host.
		if strings.HasPrefix(rest, "plugin/errors: ") {
			level = max(level, logrus.WarnLevel)
		}
	}
	entry.Log(level, text)
	return len(line), nil
}
