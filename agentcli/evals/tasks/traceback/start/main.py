from app.server import start

if __name__ == "__main__":
    start(open("server.conf").read())
