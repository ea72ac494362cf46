package kubeinit

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bridge passes the messages of klog on to logrus: structured ones as a logr.LogSink,
// printf-style ones through writeLine. At verbosity 0, all messages except errors become
// debug messages: upstream logs hundreds of them while a server starts, including
// warnings, and a user can act on none of them.
type bridge struct {
	log    *logrus.Logger
	fields logrus.Fields
	name   string
	phase  *Phase
	// refused is shared by all parts.
	refused *refused
	// verbosity is the verbosity that the user has set.
	verbosity *Verbosity
}

func newBridge(log *logrus.Logger, verbosity *Verbosity) *bridge {
	return &bridge{log: log, phase: newPhase(), refused: &refused{}, verbosity: verbosity}
}

// verbose tells whether Kubernetes's code should log more than errors.
func (b *bridge) verbose() bool { return b.verbosity.level.Load() > 0 }

// Init implements logr.LogSink. kedge does not use the caller's position.
func (b *bridge) Init(logr.RuntimeInfo) {}

// Enabled tells whether messages of a V level are logged.
func (b *bridge) Enabled(level int) bool { return level <= int(b.verbosity.level.Load()) }

// Info logs a structured message.
func (b *bridge) Info(_ int, message string, keysAndValues ...any) {
	if level := b.level(logrus.InfoLevel); b.log.IsLevelEnabled(level) {
		b.entry(keysAndValues).Log(level, message)
	}
}

// Error logs a structured error. err may be nil.
func (b *bridge) Error(err error, message string, keysAndValues ...any) {
	level := b.errorLevel(message, err)
	if !b.log.IsLevelEnabled(level) {
		return
	}
	entry := b.entry(keysAndValues)
	if err != nil {
		entry = entry.WithField(logrus.ErrorKey, withoutAddresses(err.Error()))
	}
	entry.Log(level, message)
}

// WithValues returns a bridge whose messages have further fields.
func (b *bridge) WithValues(keysAndValues ...any) logr.LogSink {
	with := *b
	with.fields = merge(b.fields, keysAndValues)
	return &with
}

// WithName returns a bridge for a named part of this one.
func (b *bridge) WithName(name string) logr.LogSink {
	with := *b
	if name == "UnhandledError" {
		return &with // the name that runtime.HandleError sets, which is not a part
	}
	if b.name != "" {
		name = b.name + "/" + name
	}
	with.name = name
	return &with
}

func (b *bridge) level(upstream logrus.Level) logrus.Level {
	if b.verbose() {
		return upstream
	}
	return logrus.DebugLevel
}

func (b *bridge) errorLevel(message string, err error) logrus.Level {
	if !b.verbose() && b.phase.expects(message, err) {
		return logrus.DebugLevel
	}
	detail := ""
	if err != nil {
		detail = err.Error()
	}
	return b.refused.level(message, detail)
}

func (b *bridge) entry(keysAndValues []any) *logrus.Entry {
	name := caller()
	switch {
	case b.name == "" || b.name == name:
	case name == unknown:
		name = b.name
	default:
		name += "/" + b.name
	}
	return b.log.WithField("component", name).WithFields(merge(b.fields, keysAndValues))
}

// writeLine logs a line that klog has formatted:
//
//	W1121 03:35:50.000000   12345 file.go:42] the message
//
// klog tells the severity of its printf-style functions only in that line (klog.go,
// output).
//
//upstream:relies-on k8s.io/klog/v2/klog.go loggingT.output
//upstream:relies-on k8s.io/klog/v2/internal/buffer/buffer.go Buffer.FormatHeader
func (b *bridge) writeLine(line []byte) {
	if len(line) == 0 {
		return
	}
	_, message, found := bytes.Cut(line, []byte("] "))
	if !found {
		message = line
	}
	text := withoutAddresses(string(bytes.TrimRight(message, "\n")))
	level := b.level(logrus.InfoLevel)
	switch line[0] {
	case 'W':
		level = b.level(logrus.WarnLevel)
	case 'E':
		level = b.errorLevel(text, errors.New(text))
	case 'F':
		// klog then ends the process, which calls Phase.exit.
		b.phase.last.Store(text)
		level = logrus.ErrorLevel
		if b.phase.state.Load() == stopping {
			level = b.level(level)
		}
	}
	if b.log.IsLevelEnabled(level) {
		b.entry(nil).Log(level, text)
	}
}

// merge returns fields together with the pairs of keysAndValues. Values become text at
// once, because klog's callers may change an object after the call.
func merge(fields logrus.Fields, keysAndValues []any) logrus.Fields {
	all := make(logrus.Fields, len(fields)+len(keysAndValues)/2)
	maps.Copy(all, fields)
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		all[fmt.Sprint(keysAndValues[i])] = text(keysAndValues[i+1])
	}
	return all
}

// text returns a value as text. For an object of the API, that is its name, because the rest is long
// and has pointers in it. For an Event, that is its message.
func text(value any) string {
	if m, ok := value.(logr.Marshaler); ok {
		value = m.MarshalLog()
	}
	if nothing := reflect.ValueOf(value); nothing.Kind() == reflect.Pointer && nothing.IsNil() {
		return "<nil>"
	}
	switch value := value.(type) {
	case *corev1.Event:
		about := value.InvolvedObject
		return fmt.Sprintf("%s of %s %s: %s", value.Reason, about.Kind, name(about.Namespace, about.Name), value.Message)
	case *eventsv1.Event:
		about := value.Regarding
		return fmt.Sprintf("%s of %s %s: %s", value.Reason, about.Kind, name(about.Namespace, about.Name), value.Note)
	case metav1.Object:
		return name(value.GetNamespace(), value.GetName())
	}
	return withoutAddresses(fmt.Sprint(value))
}

func withoutAddresses(text string) string { return addresses.ReplaceAllString(text, "...") }

func name(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// addresses are places in memory, as Go prints them. They tell nobody anything.
var addresses = regexp.MustCompile(`\b0x[0-9a-f]{9,16}\b`)
