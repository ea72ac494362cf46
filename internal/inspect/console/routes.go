package console

import (
	"io/fs"
	"net/http"
)

// routes has a line for each page: method and path, and what answers.
func (c *Console) routes() http.Handler {
	mux := http.NewServeMux()
	for path, page := range map[string]view{
		"/{$}":                                        overview,
		"/namespaces":                                 namespaces,
		"/namespaces/{namespace}":                     namespace,
		"/namespaces/{namespace}/map":                 reach,
		"/namespaces/{namespace}/{kind}/{name}":       object,
		"/namespaces/{namespace}/{kind}/{name}/yaml":  manifest,
		"/namespaces/{namespace}/pod/{name}/log":      podLog,
		"/namespaces/{namespace}/pod/{name}/terminal": podTerminal,
		"/terminals/{id}":                             terminal,
		"/nodes":                                      nodes,
		"/nodes/{name}":                               node,
		"/volumes":                                    volumes,
		"/events":                                     timeline,
		"/namespaces/{namespace}/{kind}/{name}/do/{action}": question,
		"/nodes/{name}/do/{action}":                         question,
	} {
		mux.HandleFunc("GET "+path, c.page(page))
	}
	mux.HandleFunc("GET /namespaces/{namespace}/pod/{name}/log/lines", c.follow)
	mux.HandleFunc("POST /namespaces/{namespace}/{kind}/{name}/do/{action}", c.do)
	mux.HandleFunc("POST /nodes/{name}/do/{action}", c.do)
	mux.HandleFunc("POST /namespaces/{namespace}/pod/{name}/terminal", c.openTerminal)
	mux.HandleFunc("GET /terminals/{id}/screen", c.watchTerminal)
	mux.HandleFunc("POST /terminals/{id}/keys", c.typed)
	mux.HandleFunc("POST /terminals/{id}/size", c.resized)
	mux.HandleFunc("POST /terminals/{id}/end", c.endTerminal)
	files, _ := fs.Sub(assets, "assets") // the folder is in the executable
	for _, name := range []string{"style.css", "page.js", "terminal.js"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, name) })
	}
	mux.HandleFunc("/", c.page(view{name: "missing", title: says("Not here"), data: func(*visit) any { return nil }}))
	return mux
}

// says makes a title that is always the same.
func says(title string) func(*visit) string { return func(*visit) string { return title } }
