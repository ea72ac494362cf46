package console

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/kedge-dev/kedge/tests/harness"
)

// lines is an expression of the page for what a terminal shows.
const lines = `[...document.querySelectorAll("#lines > div")].map(line => line.textContent).join("\n")`

// openShell opens a terminal in the container of the pod talker.
func (s *seen) openShell(tab context.Context, program string) {
	s.Helper()
	s.open(tab, "/namespaces/shop/pod/talker/terminal?container=main")
	s.run(tab, chromedp.SetValue("#command", program), chromedp.Click("main button"), chromedp.WaitVisible("#lines"))
}

// sees waits until the terminal shows what a regular expression describes, and returns the submatches.
func (s *seen) sees(tab context.Context, pattern string) (found []string) {
	s.Helper()
	s.Eventually("the terminal to show "+pattern, func() error {
		text := evaluated[string](s, tab, lines)
		if found = regexp.MustCompile(pattern).FindStringSubmatch(text); found == nil {
			return fmt.Errorf("it shows %.3000q", text)
		}
		return nil
	})
	return found
}

// prompt waits until the shell reads. busybox loses what was typed while it gets ready, in any terminal.
func (s *seen) prompt(tab context.Context) {
	s.Helper()
	s.sees(tab, `[%#]\s*$`)
}

// runs types a command when the shell reads.
func (s *seen) runs(tab context.Context, command string) {
	s.Helper()
	s.prompt(tab)
	s.run(tab, chromedp.KeyEvent(command))
	end := len(command) - 1
	s.sees(tab, regexp.QuoteMeta(command[end-1:end])+`\n?`+regexp.QuoteMeta(command[end:])+`\s*$`) // the old prompt is no longer the last word
	s.run(tab, chromedp.KeyEvent(kb.Enter))
}

// terminal works in a terminal as people do.
func (s *seen) terminal(tab context.Context) {
	s.run(tab, chromedp.EmulateViewport(1000, 800))
	s.open(tab, "/namespaces/shop/pod/talker")
	s.press(tab, "Terminal in main")
	s.run(tab, chromedp.WaitVisible("#command"))
	s.picture(tab, "terminal-question")
	s.accessible(tab, "the page before a terminal")
	s.run(tab, chromedp.Click("main button"), chromedp.WaitVisible("#lines"))
	s.sees(tab, `#\s*$`)
	s.runs(tab, "echo $((6*7))")
	s.sees(tab, `(?m)^42$`)

	s.runs(tab, `printf '\033[1;31mred\033[0m \033[97;44mblue\033[0m \033[7mturned\033[0m \033[38;5;208morange\033[0m\n'; PS1='% '`)
	s.sees(tab, `\nred blue turned orange\n%\s*$`)
	for class, want := range map[string]string{".f2.bold": "red", ".f16.b5": "blue", ".inverse": "turned", ".cursor": " "} {
		if got := evaluated[string](s, tab, `document.querySelector("#lines `+class+`").textContent`); got != want {
			s.Errorf("%s is %q", class, got)
		}
	}
	s.accessible(tab, "a terminal")
	s.picture(tab, "terminal")

	// A program may write anything.
	s.runs(tab, `printf '\033]0;evil\007\033]52;c;aGk=\007<script>document.title=1</script>\033[99999999b\033[2147483647S\033[H\033[J\377\n<b>bold\n'`)
	s.sees(tab, `\n<b>bold\n%\s*$`)
	if title := ask(s, tab, chromedp.Title()); !strings.HasPrefix(title, "Terminal in pod/talker") {
		s.Errorf("the title is %q", title)
	}
	s.runs(tab, `clear; seq 300; echo '<script>document.title=1</script>'`)
	s.sees(tab, `^1\n2\n3\n(?s:.*)\n299\n300\n<script>document.title=1</script>\n%\s*$`)

	s.keys(tab)
	s.resize(tab)
	s.editor(tab)

	s.runs(tab, "exit 3")
	s.run(tab, chromedp.WaitVisible("#ended"))
	if text := ask(s, tab, chromedp.Text("#ended")); !strings.HasPrefix(text, "The program has ended with exit status 3.") {
		s.Errorf("after the end the page says %q", text)
	}
	if at := evaluated[string](s, tab, `document.activeElement.textContent`); at != "Open another terminal" {
		s.Errorf("after the end the keyboard is at %q", at)
	}
	s.accessible(tab, "a terminal that has ended")
	s.picture(tab, "terminal-ended")
}

// keys tries keys that the browser has a use for, too, and the way out.
func (s *seen) keys(tab context.Context) {
	s.runs(tab, "clear; mkdir -p /tmp/completed")
	s.prompt(tab)
	s.run(tab, chromedp.KeyEvent("cd /tmp/comp"), chromedp.KeyEvent(kb.Tab))
	s.sees(tab, `cd /tmp/completed/\s*$`)
	s.run(tab, chromedp.KeyEvent(kb.Enter))
	s.runs(tab, "pwd")
	s.sees(tab, `(?m)^/tmp/completed$`)
	s.runs(tab, "clear; echo; echo sleeping; sleep 10000")
	s.sees(tab, `(?m)^sleeping$`)
	s.run(tab, chromedp.KeyEvent("c", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	s.runs(tab, "echo status $?")
	s.sees(tab, `(?m)^status 130$`)
	s.prompt(tab)
	s.run(tab, chromedp.KeyEvent(kb.ArrowUp), chromedp.KeyEvent(kb.Backspace+kb.Backspace+"7"), chromedp.KeyEvent(kb.Enter))
	s.sees(tab, `(?m)^status 7$`)
	s.prompt(tab)
	evaluated[int](s, tab, `{
		const data = new DataTransfer();
		data.setData("text/plain", "echo pas''ted; echo tw''ice\n");
		document.getElementById("keys").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, cancelable: true }));
		0 }`)
	s.sees(tab, `(?m)^pasted$(?s:.*)^twice$`)
	for _, want := range []string{"Screen of the terminal", "End the terminal"} {
		s.run(tab, chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
		if at := evaluated[string](s, tab, `document.activeElement.getAttribute("aria-label") || document.activeElement.textContent`); at != want {
			s.Errorf("Shift+Tab leads to %q, want %q", at, want)
		}
	}
	s.run(tab, chromedp.Click("#lines"))
	s.runs(tab, "echo ba''ck")
	s.sees(tab, `(?m)^back$`)
}

// resize gives the window other sizes.
func (s *seen) resize(tab context.Context) {
	size := func() (columns int) {
		s.runs(tab, "clear; echo; stty size")
		columns, _ = strconv.Atoi(s.sees(tab, `\n\d+ (\d+)\n%\s*$`)[1])
		return columns
	}
	before := size()
	s.run(tab, chromedp.EmulateViewport(360, 740))
	s.Eventually("the program to know the narrow window", func() error {
		if now := size(); now >= before || now < 20 {
			return fmt.Errorf("it has %d columns, after %d", now, before)
		}
		return nil
	})
	if over := evaluated[int](s, tab, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
		s.Errorf("the terminal is %d pixels wider than a screen of 360", over)
	}
	s.runs(tab, "clear; ls -l /")
	s.sees(tab, `etc`)
	s.accessible(tab, "a narrow terminal")
	s.picture(tab, "terminal-narrow")
	s.run(tab, chromedp.EmulateViewport(1000, 800))
	s.Eventually("the program to know the wide window", func() error {
		if now := size(); now != before {
			return fmt.Errorf("it has %d columns, after %d", now, before)
		}
		return nil
	})
}

// editor uses a program that takes the whole screen.
func (s *seen) editor(tab context.Context) {
	s.runs(tab, "cd /tmp; clear; vi text")
	s.sees(tab, `\n ?\n~\n(?s:.*)text`)
	s.run(tab, chromedp.KeyEvent("ithe first line"), chromedp.KeyEvent(kb.Enter), chromedp.KeyEvent("another line"))
	s.run(tab, chromedp.KeyEvent(kb.ArrowUp), chromedp.KeyEvent(kb.Home), chromedp.KeyEvent("This is "))
	s.sees(tab, `This is the first line\nanother line\n~\n`)
	s.picture(tab, "terminal-editor")
	s.run(tab, chromedp.KeyEvent(kb.Escape))
	s.sees(tab, `\n- text`) // vi takes Escape for the beginning of another key if more follows at once
	s.run(tab, chromedp.KeyEvent(":wq"), chromedp.KeyEvent(kb.Enter))
	s.sees(tab, `%\s*$`)
	s.runs(tab, "clear; echo; cat text")
	s.sees(tab, `\nThis is the first line\nanother line\n%`)
}

// noTerminal opens terminals that end at once, and one that nobody looks at.
func (s *seen) noTerminal(tab context.Context, host *harness.Host) {
	ends := func(want string) {
		s.Helper()
		s.run(tab, chromedp.WaitVisible("#ended"))
		if text := ask(s, tab, chromedp.Text("#ended")); !strings.Contains(text, want) {
			s.Errorf("the page says %q, and lacks %q", text, want)
		}
	}
	s.openShell(tab, "bash")
	ends(`"bash": executable file not found`)
	// The program ends when its page was left.
	s.openShell(tab, "sh -i")
	s.sees(tab, `#\s*$`)
	runs := func() bool {
		return strings.Contains(s.Kubectl("exec", "--namespace=shop", "talker", "--", "ps", "-o", "args"), "sh -i")
	}
	if !runs() {
		s.Error("the program is not in the list of processes")
	}
	s.open(tab, "/nodes")
	s.Eventually("the program to end", func() error {
		if runs() {
			return errors.New("it runs")
		}
		return nil
	})
	s.openShell(tab, "sh -i")
	s.sees(tab, `#\s*$`)
	s.runs(tab, "sleep 10000") // the shell waits for it
	s.run(tab, chromedp.Click("main button"), chromedp.WaitVisible(".steps"))
	s.Eventually("the program to end", func() error {
		if runs() {
			return errors.New("it runs")
		}
		return nil
	})

	// A user who may read pods, and may not run anything in them.
	for _, words := range []string{
		"create serviceaccount reader --namespace=shop", "create rolebinding reader --namespace=shop --clusterrole=view --serviceaccount=shop:reader",
	} {
		s.Kubectl(strings.Fields(words)...)
	}
	token := s.Kubectl("create", "token", "reader", "--namespace=shop")
	for _, words := range []string{
		"set-cluster own --server=https://127.0.0.1:6443 --insecure-skip-tls-verify=true", "set-context own --cluster=own --user=reader --namespace=shop", "use-context own",
		"set-credentials reader --token=" + token,
	} {
		s.Kubectl(append([]string{"--kubeconfig=/opt/reader.yaml", "config"}, strings.Fields(words)...)...)
	}
	reader := s.in(s.T)
	s.run(tab, chromedp.Navigate(reader.start(host, "--kubeconfig=/opt/reader.yaml")), chromedp.WaitVisible("main h1"))
	reader.openShell(tab, "sh")
	ends(`You may not run programs in this pod: pods "talker" is forbidden`)
	s.picture(tab, "terminal-forbidden")
	s.open(tab, "/")
}
