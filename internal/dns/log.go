package dns

import (
	"bytes"
	"io"
	stdlog "log"
	"strings"

	"github.com/sirupsen/logrus"
)

// bridgeLog sends what CoreDNS logs, which goes through the standard library's
// process-wide logger, to logrus. The returned function undoes it.
func bridgeLog() (undo func()) {
	writer, flags := stdlog.Writer(), stdlog.Flags()
	stdlog.SetFlags(0)
	stdlog.SetOutput(bridge{})
	return func() {
		stdlog.SetOutput(writer)
		stdlog.SetFlags(flags)
	}
}

// bridge is an io.Writer of lines that begin with a level in brackets, as
// CoreDNS's plugin/pkg/log writes them. Other libraries' lines, without one,
// pass as they are.
type bridge struct{}

var _ io.Writer = bridge{}

func (bridge) Write(line []byte) (int, error) {
	level, text := logrus.InfoLevel, string(bytes.TrimRight(line, "\n"))
	entry := logrus.NewEntry(logrus.StandardLogger())
	if word, rest, found := strings.Cut(strings.TrimPrefix(text, "["), "] "); found && strings.HasPrefix(text, "[") {
		if parsed, err := logrus.ParseLevel(word); err == nil {
			// CoreDNS logs and then exits by itself; logrus must not.
			level, text = max(parsed, logrus.ErrorLevel), rest
			entry = entry.WithField("component", Name)
		}
	}
	entry.Log(level, text)
	return len(line), nil
}
