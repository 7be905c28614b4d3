"""A server on loopback in place of one that flow calls: of a webhook, of events, of MLflow."""
import http.server
import threading


class HttpDouble:
    """Its subclass answers GET, POST and PUT: `answer` gets the handler and the body, and returns a status and bytes."""

    def __init__(self):
        double = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                status, text = double.answer(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                except OSError:
                    pass  # the client has ended
            do_POST = do_PUT = do_GET

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
